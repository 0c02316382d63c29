"""The semantic key of an effect: what makes two proposed calls the same effect in the outside world (seed 001).

Company, area, agent and tool are always in it, by construction; a curator only chooses argument paths. The agent's
version is never in it. There is no fallback to hashing all arguments: an absent path is an error, not an empty value.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import rfc8785

from muniment.policies.errors import InvalidInput, MissingKeyPath
from muniment.policies.model import nfc
from muniment.policies.partitioning import partition_of_key

#: The version of the way keys are made; it is the first byte of each.
KEY_VERSION = 1
#: version byte, 8 bytes of the company's hash (so that a company's keys lie together), SHA-256 of the canonical form.
_PREFIX_BYTES = 1 + 8
KEY_BYTES = _PREFIX_BYTES + 32
MAX_KEY_PATHS = 32
MAX_PATH_CHARS = 512
MAX_DEPTH = 64
MAX_SAFE_INTEGER = 2**53 - 1
_STANDARD_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), check_circular=False)
_ARRAY_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_BAD_ESCAPE = re.compile(r"~(?![01])")


@dataclass(frozen=True, slots=True, order=True)
class KeyPath:
    """A place in the arguments: the reference tokens of a JSON Pointer (RFC 6901, section 3), unescaped and in NFC."""

    tokens: tuple[str, ...]

    @property
    def pointer(self) -> str:
        """The path as a JSON Pointer."""
        return _pointer(self.tokens)


@lru_cache(maxsize=4096)
def _pointer(tokens: tuple[str, ...]) -> str:
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)


def parse_key_path(text: str, at: str = "") -> KeyPath:
    """The path that ``text`` names: a JSON Pointer, or its dotted shorthand (``owner.name`` is ``/owner/name``).

    The whole document ("") is refused. Raises ``InvalidInput`` naming ``at``.
    """
    text = nfc(text)
    if not text:
        raise InvalidInput.at(at, "a key path is empty; it would stand for all arguments")
    if len(text) > MAX_PATH_CHARS:
        raise InvalidInput.at(at, f"a key path is longer than {MAX_PATH_CHARS} characters")
    if not text.startswith("/"):
        return _parse_dotted(text, at)
    if _BAD_ESCAPE.search(text):
        raise InvalidInput.at(at, "in a JSON Pointer ~ is written ~0, and nothing but 0 or 1 follows it")
    return KeyPath(tuple(token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/")))


def _parse_dotted(text: str, at: str) -> KeyPath:
    if "/" in text:
        raise InvalidInput.at(at, "a JSON Pointer begins with /; the dotted shorthand has no / in it")
    tokens = tuple(text.split("."))
    if not all(tokens):
        raise InvalidInput.at(at, "a name between two dots is empty")
    return KeyPath(tokens)


def parse_key_paths(texts: Iterable[str], at: str = "/key_paths") -> tuple[KeyPath, ...]:
    """The paths in order of their tokens: their written order is no part of a key. Raises ``InvalidInput``."""
    paths = [parse_key_path(text, f"{at}/{i}") for i, text in enumerate(texts)]
    if not 1 <= len(paths) <= MAX_KEY_PATHS:
        raise InvalidInput.at(at, f"1 to {MAX_KEY_PATHS} key paths are needed")
    for i, path in enumerate(paths):
        if path in paths[:i]:
            raise InvalidInput.at(f"{at}/{i}", f"{path.pointer} is named twice")
    return tuple(sorted(paths))


def effect_key(
    *, company: str, area: str, agent: str, tool: str, paths: Iterable[KeyPath], arguments: Mapping[str, Any]
) -> bytes:
    """The key of a proposed effect, ``KEY_BYTES`` long.

    Equal for any order of JSON names, for 1 and 1.0, and for text that is equal in NFC; different for "1" and 1, for
    another company, area, agent or tool, and for values under other paths. Values are canonical by RFC 8785.

    Raises ``MissingKeyPath`` where a path is absent or null, ``InvalidInput`` for a value that RFC 8785 cannot carry;
    both name the place as ``/arguments/…``.
    """
    values = {path.pointer: _clean(_value_at(arguments, path), "/arguments" + path.pointer, 0) for path in paths}
    if not values:
        raise InvalidInput.at("/key_paths", "a key needs at least one path")
    # Names are in order in the canonical form, and "values" comes after those of the scope.
    canonical = b'%b,"values":%b}' % (_scope(company, area, agent, tool), _canonical(values))
    return company_prefix(company) + hashlib.sha256(canonical).digest()


@lru_cache(maxsize=4096)
def _scope(company: str, area: str, agent: str, tool: str) -> bytes:
    """The canonical form of the scope, but for its closing brace."""
    scope = {"company": company, "area": area, "agent": agent, "tool": tool}
    return _canonical({name: _text(value, f"/{name}") for name, value in scope.items()})[:-1]


@lru_cache(maxsize=1024)
def company_prefix(company: str) -> bytes:
    """What all keys of a company begin with; other companies' keys may share it, so it narrows and proves nothing."""
    return bytes([KEY_VERSION]) + hashlib.sha256(nfc(company).encode()).digest()[:8]


def key_partition(key: bytes) -> int:
    """The partition of a key, 0 to 255, uniform."""
    return partition_of_key(key[_PREFIX_BYTES:])


def route_partition(company: str, run_id: str) -> int:
    """The partition that records what a run proposes without a key, 0 to 255, uniform."""
    return hashlib.sha256(f"{nfc(company)}\x00{run_id}".encode()).digest()[0]


def _value_at(arguments: Mapping[str, Any], path: KeyPath) -> Any:
    value: Any = arguments
    for token in path.tokens:
        value = _step(value, token, path)
    if value is None:
        raise _missing(path)
    return value


def _step(value: Any, token: str, path: KeyPath) -> Any:
    if isinstance(value, Mapping):
        if token in value and all(map(str.isascii, value)):
            return value[token]
        names = [name for name in value if name == token or (not name.isascii() and nfc(name) == token)]
        if len(names) > 1:
            raise InvalidInput.at("/arguments" + path.pointer, "two names are the same in Unicode NFC")
        if names:
            return value[names[0]]
    elif isinstance(value, (list, tuple)) and _ARRAY_INDEX.fullmatch(token) and int(token) < len(value):
        return value[int(token)]
    raise _missing(path)


def _missing(path: KeyPath) -> MissingKeyPath:
    return MissingKeyPath.at("/arguments" + path.pointer, "a declared key path is absent or null")


def _canonical(value: dict[str, Any]) -> bytes:
    """RFC 8785 of a clean value. Where all names are ASCII and no number is a fraction, the standard library writes the
    same in a tenth of the time; what differs is the form of fractions and the order of names beyond U+FFFF.
    """
    return _STANDARD_JSON.encode(value).encode() if _is_plain(value) else rfc8785.dumps(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(str.isascii, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, float)


def _clean(value: Any, at: str, depth: int) -> Any:
    """``value`` with all text in NFC; what RFC 8785 cannot carry is refused with its place."""
    if isinstance(value, str):
        return _text(value, at)
    if depth > MAX_DEPTH:
        raise InvalidInput.at(at, f"nested deeper than {MAX_DEPTH}")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if abs(value) > MAX_SAFE_INTEGER:
            raise InvalidInput.at(at, "an integer beyond 2^53 - 1 has no exact JSON form; send it as text")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput.at(at, "NaN and infinities are not JSON")
        return int(value) if value.is_integer() and abs(value) <= MAX_SAFE_INTEGER else value
    if isinstance(value, Mapping):
        return _clean_object(value, at, depth)
    if isinstance(value, (list, tuple)):
        return [_clean(item, f"{at}/{i}", depth + 1) for i, item in enumerate(value)]
    raise InvalidInput.at(at, f"{type(value).__name__} is not JSON")


def _clean_object(value: Mapping[Any, Any], at: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, item in value.items():
        if not isinstance(name, str):
            raise InvalidInput.at(at, "a name in an object is not text")
        clean = _text(name, at)
        if clean in found:
            raise InvalidInput.at(at, "two names are the same in Unicode NFC")
        found[clean] = _clean(item, at + KeyPath((clean,)).pointer, depth + 1)
    return found


def _text(value: str, at: str) -> str:
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise InvalidInput.at(at, "text has a lone surrogate")
    if "\x00" in value:
        raise InvalidInput.at(at, "text has a NUL character")
    return nfc(value)
