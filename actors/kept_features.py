"""The features of a fact as they are kept in the store beside its vector, so that loading a company finds none anew.

They need no snapshot of an index with a position in the store that could be stale: each row says by which settings its
features were found, and one that says otherwise, or cannot be read, is found anew. The index's rows are copies of
vectors that are in the store already; building an exact index from them costs 20 ms for 5,000, and a graph is built in
the background.
"""

from __future__ import annotations

from typing import NamedTuple

from muniment.actors.wire import pack, unpack
from muniment.policies.entities import normalise_entity
from muniment.policies.errors import CorruptData
from muniment.policies.extraction import FINGERPRINT_BYTES, Extraction
from muniment.policies.model import Fact


class Kept(NamedTuple):
    """``entities``: those that the fact names and those of its text. ``terms``: packed, see ``counts``."""

    entities: frozenset[str]
    terms: bytes


def find(fact: Fact, extraction: Extraction) -> Kept:
    """The features of ``fact``."""
    found = extraction.features(fact.text)
    named = {normalise_entity(entity) for entity in fact.entities}
    return Kept(frozenset(named.union(found.entities)), pack(dict(found.terms)))


def counts(terms: bytes) -> dict[str, int]:
    """The terms with the number of times that each stands in the text."""
    found: dict[str, int] = unpack(terms)
    return found


def to_store(features: Kept, extraction: Extraction) -> bytes:
    """What is kept."""
    return extraction.fingerprint + pack([features.entities, features.terms])


def from_store(data: bytes | None, extraction: Extraction) -> Kept | None:
    """What ``to_store`` made; None where ``extraction`` would find something else."""
    if data is None or not data.startswith(extraction.fingerprint):
        return None
    try:
        entities, terms = unpack(data[FINGERPRINT_BYTES:])
    except CorruptData:
        return None
    return Kept(frozenset(entities), terms)
