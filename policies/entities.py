"""Named things in a text: what the retrieval gate asks for and what shared mentions are counted by.

The published program looks for four fixed patterns; here extraction is general: identifiers, codes, hosts, compound
names, dates, quantities, capitalised names in any script that has capitals, quoted names in any script, and what a
company's own patterns match. Query and fact go through the same function. Time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import re2

from muniment.policies.model import nfc
from muniment.policies.terms import JOINERS, MAX_TERM_CHARACTERS, STOP_WORDS, TOKEN, fold_accents, word_set

MAX_ENTITIES: Final = 128
"""Entities of one text; what follows is left out."""
MAX_ENTITY_CHARACTERS: Final = 96
MAX_PATTERNS: Final = 32
"""Patterns of one company."""
MAX_PATTERN_CHARACTERS: Final = 256
MAX_PATTERN_STEPS: Final = 1_500
"""Instructions of a compiled pattern: searching costs at most so many for each character."""
READ_FOR_PATTERNS: Final = 4_096
"""Characters of a text that a company's own patterns are looked for in, the first."""
_PATTERN_MEMORY_BYTES: Final = 1 << 20

_QUOTED: Final = re.compile(
    "|".join(
        f"{opening}([^{closing}\n]{{2,{MAX_ENTITY_CHARACTERS}}}){closing}"
        for opening, closing in ('""', "“”", "„“", "«»", "‹›", "「」", "『』", "《》", "〈〉", "``")
    )
)
_SEGMENTS: Final = re.compile(rf"[{JOINERS},]+")
_SENTENCE_END: Final = re.compile(r"[.!?…:;\n。！？؟।¿¡•\"“”«»(\[{]")
_POSSESSIVE: Final = re.compile(r"['’][sS]$")
_PARTICLES: Final = word_set("da das de del della den der di do dos du e el la le of und van von y ibn bin al")
_MAX_RUN: Final = 6
# With a capital, "São" is a saint's more often than it is "are".
_STARTERS: Final = frozenset().union(*STOP_WORDS.values()) - {"são"}


def extract_entities(text: str, patterns: Sequence[str] = ()) -> tuple[str, ...]:
    """The entities of ``text``, normalised (``normalise_entity``) and sorted, at most ``MAX_ENTITIES``.

    ``patterns``: a company's own, as ``check_pattern`` accepts them; each whole match is an entity.
    """
    text = nfc(text)
    found: dict[str, None] = {}
    start = text[:READ_FOR_PATTERNS]
    for pattern in _compiled(tuple(patterns)):
        # A bounded number of matches: each may have to read to the end.
        for match in islice(pattern.finditer(start), MAX_ENTITIES):
            _keep(found, match.group(0))
    for match in _QUOTED.finditer(text):
        _keep(found, match[match.lastindex or 0])
    _keep_tokens(text, found)
    return tuple(sorted(found))


def normalise_entity(name: str) -> str:
    """``name`` in the form in which entities are compared: case and accents folded as in terms, single spaces."""
    return " ".join(fold_accents(name).split())[:MAX_ENTITY_CHARACTERS]


def check_pattern(pattern: str) -> str:
    """A company's own pattern, if it is short, of few steps, and in RE2's syntax, whose searches take linear time.

    Raises ``ValueError`` that says what is wrong; a pattern that matches the empty text is refused too.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise ValueError(f"must have at most {MAX_PATTERN_CHARACTERS} characters")
    try:
        compiled = compile_pattern(pattern)
        empty = compiled.search("") is not None
    except re2.error as error:
        raise ValueError(f"not a pattern in RE2 syntax: {_reason(error)}") from error
    if compiled.programsize > MAX_PATTERN_STEPS:
        raise ValueError(
            f"takes {compiled.programsize} steps a character, {MAX_PATTERN_STEPS} are allowed: repeat less, or narrower"
        )
    if empty:
        raise ValueError("matches the empty text")
    return pattern


def is_mentioned(entity: str, entities: Iterable[str], text: str) -> bool:
    """Whether a fact speaks of ``entity``: it is among the fact's ``entities``, a whole part of one of them
    (``r17-m1`` of ``r17-m1-n0``), or stands in ``text`` (already folded) between word boundaries."""
    return _stands_in(entity, text) or any(entity == other or _stands_in(entity, other) for other in entities)


def count_shared(query_entities: Iterable[str], facts: Sequence[tuple[frozenset[str], str]]) -> list[int]:
    """How many of the query's entities are among each fact's entities or stand in its text (already folded)."""
    counts = [0] * len(facts)
    for entity in query_entities:
        for place, (entities, text) in enumerate(facts):
            if entity in entities or (entity in text and _stands_in(entity, text)):
                counts[place] += 1
    return counts


def matching(entities: Iterable[str], pattern: str) -> tuple[str, ...]:
    """The entities that ``pattern`` (RE2 syntax) matches whole."""
    compiled = compile_pattern(pattern)
    return tuple(entity for entity in entities if compiled.fullmatch(entity) is not None)


def _stands_in(name: str, text: str) -> bool:
    """Whether ``name`` occurs in ``text`` with no letter or digit right before or after it."""
    position = text.find(name)
    while position >= 0:
        end = position + len(name)
        if not (position and text[position - 1].isalnum()) and not (end < len(text) and text[end].isalnum()):
            return True
        position = text.find(name, position + 1)
    return False


def _keep(found: dict[str, None], name: str) -> None:
    normal = normalise_entity(name)
    if normal and len(found) < MAX_ENTITIES:
        found[normal] = None


def _keep_tokens(text: str, found: dict[str, None]) -> None:
    """Identifiers, numbers and capitalised names, in one walk over the words of ``text``."""
    run: list[str] = []
    particles: list[str] = []
    run_starts_sentence = False
    end = 0

    def close() -> None:
        if run:
            _keep_name(run, run_starts_sentence, text[end : end + 1], found)
            run.clear()
            particles.clear()

    for match in TOKEN.finditer(text):
        if len(found) >= MAX_ENTITIES:
            return
        word = match[0]
        gap = text[end : match.start()]
        starts_sentence = not end or (gap != " " and _SENTENCE_END.search(gap) is not None)
        if run and (gap != " " or len(run) >= _MAX_RUN):
            close()
        end = match.end()
        code = _code_of(word, starts_sentence)
        if code is not None:
            close()
            if code and len(found) < MAX_ENTITIES:
                found[code] = None
        elif _is_capitalised(word):
            if not run:
                run_starts_sentence = starts_sentence
            run.extend(particles)
            particles.clear()
            run.append(word)
        elif run and not particles and word in _PARTICLES:
            particles.append(word)
        elif run:
            run_end, end = end, match.start() - len(gap)
            close()
            end = run_end
    close()


def _keep_name(run: list[str], starts_sentence: bool, following: str, found: dict[str, None]) -> None:
    """Keeps a run of capitalised words without the function words around it.

    One word alone at the start of a sentence says nothing about names unless it is a label (``Caroline: hello``), an
    acronym, or a possessive.
    """
    while run and run[0].lower() in _STARTERS:
        run, starts_sentence = run[1:], False
    while run and run[-1].lower() in _STARTERS:
        run = run[:-1]
    if not run:
        return
    name = _POSSESSIVE.sub("", " ".join(run))
    plain = len(run) == 1 and starts_sentence and name == run[0] and following != ":" and not name[1:].isupper()
    if len(name) > 1 and not plain:
        _keep(found, name)


def _code_of(word: str, starts_sentence: bool) -> str | None:
    """The normalised entity that an identifier or a number is; None for any other word."""
    # Texts repeat their words; what is too long to be one is not worth remembering.
    return (_known_code if len(word) <= MAX_TERM_CHARACTERS else _find_code)(word, starts_sentence)


def _find_code(word: str, starts_sentence: bool) -> str | None:
    if _is_identifier(word, starts_sentence) or word.isdigit():
        return normalise_entity(_POSSESSIVE.sub("", word))
    return None


_known_code = lru_cache(maxsize=32_768)(_find_code)


def _is_capitalised(word: str) -> bool:
    return word[0].isupper() or word[0].istitle()


def _is_identifier(word: str, starts_sentence: bool) -> bool:
    """Letters with digits, or parts held together by something that prose does not use between small words."""
    if word.isalpha() or word.isdigit():
        return False
    has_digit = any(c.isdigit() for c in word)
    has_letter = any(c.isalpha() for c in word)
    if has_digit and has_letter:
        return True
    segments = [segment for segment in _SEGMENTS.split(word) if segment]
    if "_" in word.strip("_") or "@" in word:
        return True
    if len(segments) < 2:
        return False
    if has_digit:
        return True
    if any(joiner in word for joiner in ".:/\\#") and all(len(segment) > 1 for segment in segments):
        return not (word.count("/") == 1 and word[1:].islower())
    capitals = sum(_is_capitalised(segment) for segment in segments)
    return "-" in word and capitals > (1 if starts_sentence else 0)


def compile_pattern(pattern: str) -> Any:
    """The pattern compiled, in bounded memory. Raises ``re2.error``."""
    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY_BYTES
    options.log_errors = False
    return re2.compile(pattern, options)


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(compile_pattern(pattern) for pattern in patterns)


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
