"""The text of a key: ``mk_ID_SECRET``, of which only the SHA-256 is ever stored (256 random bits need no salt)."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from muniment.policies.errors import ConfigurationError

#: The id of the operator key, which is made by whoever starts the service and read from its data directory.
OPERATOR_ID = "operator"
_KEY = re.compile(r"mk_(?P<id>[a-z0-9_]{1,64})_(?P<secret>[0-9a-f]{64})", re.ASCII)


def new_key(key_id: str) -> str:
    """A new key with this id."""
    return f"mk_{key_id}_{secrets.token_hex(32)}"


def key_id_of(key: str) -> str | None:
    """The id in a key, or None where the text is not a key."""
    match = _KEY.fullmatch(key)
    return match["id"] if match else None


def key_hash(key: str) -> bytes:
    """What is stored of a key: 32 bytes."""
    return hashlib.sha256(key.encode()).digest()


def ensure_operator_key(path: Path) -> str:
    """The operator key in the file ``path`` (mode 0600), which is made where there is none.

    Safe against several processes at once. Raises ``ConfigurationError`` where the file holds something else or may be
    read by others.
    """
    if not path.exists():
        draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(new_key(OPERATOR_ID) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    if path.stat().st_mode & 0o077:
        raise ConfigurationError(f"{path} may be read by others; run: chmod 600 {path}")
    key = path.read_text().strip()
    if key_id_of(key) != OPERATOR_ID:
        raise ConfigurationError(f"{path} does not hold an operator key; move it away, and the next start makes one")
    return key
