"""A company's memory policy: how important its facts are, what it calls things, what it writes in, what it forgets.

An administrator writes it beside the precedence policy; the empty one is the default. Patterns are in RE2's syntax,
whose searches take linear time, and bounded besides (``entities.check_pattern``).
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from muniment.policies.entities import MAX_PATTERNS, check_pattern
from muniment.policies.extraction import Extraction
from muniment.policies.precedence_policy import PolicyName
from muniment.policies.retention import ImportancePolicy, RetentionMode
from muniment.policies.terms import DEFAULT_LANGUAGES, LANGUAGES

MAX_LANGUAGES: Final = 4


def _language(code: str) -> str:
    if code not in LANGUAGES:
        raise ValueError(f"no stemmer for it; there are {', '.join(LANGUAGES)}")
    return code


def _distinct(languages: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(languages)) < len(languages):
        raise ValueError("names a language twice")
    return languages


_Languages = Annotated[
    tuple[Annotated[str, AfterValidator(_language)], ...],
    Field(min_length=1, max_length=MAX_LANGUAGES),
    AfterValidator(_distinct),
]
_Patterns = dict[PolicyName, Annotated[str, AfterValidator(check_pattern)]]


class MemoryPolicy(BaseModel):
    """The memory policy of a company. What is absent is as in the empty policy.

    ``importance``: of facts whose teller gives none. ``entities``: name → pattern; what one matches in a fact or in a
    query is an entity, besides those that are found anyhow. ``languages``: what the company writes in, by ISO 639-1
    code; each text is stemmed by its own of them, the first where it does not tell. ``retention``: what leaves a full
    tier: ``importance`` by score, and nothing essential for good; ``paper`` by score, whatever it is; ``lru`` by last
    use. Absent, it is ``importance``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    importance: ImportancePolicy = ImportancePolicy()
    entities: Annotated[_Patterns, Field(max_length=MAX_PATTERNS)] = Field(default_factory=dict)
    languages: _Languages = DEFAULT_LANGUAGES
    retention: RetentionMode | None = None

    @cached_property
    def extraction(self) -> Extraction:
        """How the company's texts are read; what its patterns are called does not matter."""
        return Extraction(self.languages, tuple(sorted(self.entities.values())))
