"""Two tiers that share a corpus score as one index over all members would."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.actors.lexical_index import Corpus, LexicalIndex
from muniment.actors.tier_index import TierIndex

TEXTS = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=6), min_size=1, max_size=12)


def index(texts: dict[str, list[str]], corpus: Corpus | None = None) -> LexicalIndex:
    tier = TierIndex(2, "flat")
    lexical = LexicalIndex(tier.positions, corpus=corpus)
    tier.add(list(texts), np.ones((len(texts), 2), np.float32))
    for id, terms in texts.items():
        lexical.add(id, Counter(terms))
    return lexical


@given(TEXTS, TEXTS)
def test_scores_of_two_tiers_are_on_one_scale(first: list[list[str]], second: list[list[str]]) -> None:
    l1 = {f"f_{i:02}": terms for i, terms in enumerate(first)}
    l2 = {f"f_{50 + i:02}": terms for i, terms in enumerate(second)}
    corpus = Corpus()
    tiers = [index(l1, corpus), index(l2, corpus)]
    merged, alone = (
        np.concatenate([tier.search(["a", "b"], 50)[1].of(slice(None)) for tier in found])
        for found in (tiers, [index(l1 | l2)])
    )
    assert merged == pytest.approx(alone, rel=1e-5)
