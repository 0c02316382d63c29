"""What is found in a fact's text, its entities and its terms, and by which settings.

Finding it costs most of what loading a company costs, so it is kept beside the fact. ``fingerprint`` says what it was
found by: kept features of another fingerprint are not used.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import Stemmer

from muniment.policies.entities import extract_entities
from muniment.policies.terms import DEFAULT_LANGUAGES, fact_terms, query_terms

VERSION: Final = 2
"""Grows with every change of what ``extract_entities`` or ``fact_terms`` find; a test knows what this version finds."""
FINGERPRINT_BYTES: Final = 8


class Features(NamedTuple):
    """``entities``: normalised and sorted. ``terms``: each with the number of times it stands in the text."""

    entities: tuple[str, ...]
    terms: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Extraction:
    """How a company's texts are read: its languages and its own entity patterns, checked."""

    languages: tuple[str, ...] = DEFAULT_LANGUAGES
    patterns: tuple[str, ...] = ()
    #: Of these settings, of this program's extraction, and of the libraries that it stands on.
    fingerprint: bytes = field(init=False, compare=False)

    def __post_init__(self) -> None:
        by = (VERSION, Stemmer.version(), unicodedata.unidata_version, self.languages, self.patterns)
        digest = hashlib.blake2b(repr(by).encode(), digest_size=FINGERPRINT_BYTES).digest()
        object.__setattr__(self, "fingerprint", digest)

    def features(self, text: str) -> Features:
        """What is found in ``text``."""
        return Features(extract_entities(text, self.patterns), Counter(fact_terms(text, self.languages)))

    def of_query(self, query: str) -> tuple[tuple[str, ...], list[str]]:
        """What a query asks for: its entities, and its terms."""
        return extract_entities(query, self.patterns), query_terms(query, self.languages)


DEFAULT: Final = Extraction()
"""Of a company that says nothing of its own."""
