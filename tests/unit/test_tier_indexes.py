"""The indexes of a tier against brute force: vectors, words, positions and columns through adds, removals and masks."""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait

import faiss
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muniment.actors import postings, tier_index
from muniment.actors.hnsw_graph import HnswGraph
from muniment.actors.lexical_index import Corpus, LexicalIndex
from muniment.actors.positions import Positions
from muniment.actors.tier_index import TierIndex

DIMENSION = 4
IDS = st.sampled_from([f"f{n:02}" for n in range(40)])
AXES = st.integers(0, 2 * DIMENSION - 1)  # unit vectors along an axis: few, so that many members score equally
QUERIES = st.lists(st.integers(-3, 3), min_size=DIMENSION, max_size=DIMENSION).filter(any)
TERMS = st.lists(st.sampled_from(["a", "b", "c", "d", "e", "é", "r17-m1", "한"]), max_size=6)


def axis(number: int) -> np.ndarray:
    vector = np.zeros(DIMENSION, np.float32)
    vector[number // 2] = 1.0 if number % 2 else -1.0
    return vector


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def ranked(scores: dict[str, float], k: int) -> list[tuple[str, float]]:
    return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:k]


def near(index: TierIndex, query: np.ndarray, k: int, mask: np.ndarray | None = None) -> list[tuple[str, float]]:
    """What a search finds, best first, equals by id."""
    with index.positions.lock:
        positions, cosines = index.search(query, k, mask)
        found = dict(zip(map(index.positions.id_at, positions), cosines.tolist(), strict=True))
    assert len(found) == len(positions)
    return ranked(found, len(found))


def worded(lexical: LexicalIndex, terms: list[str], k: int, mask: np.ndarray | None = None) -> list[tuple[str, float]]:
    """What a search finds, best first, equals by id."""
    with lexical._positions.lock:
        positions, scores = lexical.search(terms, k, mask)
        ids = map(lexical._positions.id_at, positions.tolist())
        found = dict(zip(ids, scores.of(positions).tolist(), strict=True))
    assert len(found) == len(positions)
    return ranked(found, len(found))


def bm25(documents: dict[str, list[str]], terms: list[str], k1: float = 1.2, b: float = 0.75) -> dict[str, float]:
    """The definition, one document at a time; documents without any of the terms are left out."""
    filled = {id: words for id, words in documents.items() if words}
    average = sum(map(len, filled.values())) / max(1, len(filled))
    frequency = Counter(word for words in filled.values() for word in set(words))
    scores = {}
    for id, words in filled.items():
        score = 0.0
        for term in terms:
            count = words.count(term)
            idf = math.log(1 + (len(filled) - frequency[term] + 0.5) / (frequency[term] + 0.5))
            score += idf * count * (k1 + 1) / (count + k1 * (1 - b + b * len(words) / average))
        if score > 0:
            scores[id] = score
    return scores


class TierMachine(RuleBasedStateMachine):
    """A tier's three parts against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.index = TierIndex(DIMENSION, "flat")
        self.lexical = LexicalIndex(self.index.positions)
        self.column = self.index.positions.column(np.int64, -1)
        self.members: dict[str, tuple[np.ndarray, list[str], int]] = {}

    @rule(batch=st.lists(st.tuples(IDS, AXES, TERMS, st.integers(0, 9)), max_size=12))
    def add(self, batch: list[tuple[str, int, list[str], int]]) -> None:
        vectors = np.array([axis(number) for _, number, _, _ in batch], np.float32).reshape(-1, DIMENSION)
        self.index.add([id for id, _, _, _ in batch], vectors)
        for (id, _, terms, mark), vector in zip(batch, vectors, strict=True):
            self.lexical.add(id, Counter(terms))
            self.column.values[self.index.positions[id]] = mark
            self.members[id] = (vector, terms, mark)

    @rule(id=IDS, number=AXES)
    def add_without_words(self, id: str, number: int) -> None:
        """What was never written has no terms and the column's fill, also where somebody lay before."""
        if id not in self.members:
            self.index.add([id], axis(number)[np.newaxis])
            self.members[id] = (axis(number), [], -1)

    @rule(ids=st.lists(IDS, max_size=30))
    def remove(self, ids: list[str]) -> None:
        assert self.index.remove(ids) == len(set(ids) & set(self.members))
        for id in ids:
            self.members.pop(id, None)

    @rule(query=QUERIES, k=st.integers(0, 50), marks=st.none() | st.sets(st.integers(-1, 9)))
    def search_vectors(self, query: list[int], k: int, marks: set[int] | None) -> None:
        wanted = np.array(query, np.float32)
        mask = None if marks is None else np.isin(self.column.values, list(marks))
        towards = (wanted / np.linalg.norm(wanted.astype(np.float64))).astype(np.float32)
        scores = {
            id: float(vector @ towards)
            for id, (vector, _, mark) in self.members.items()
            if marks is None or mark in marks
        }
        assert near(self.index, wanted, k, mask) == ranked(scores, k)
        also = [self.index.positions[id] for id in scores][::2]
        places, cosines = self.index.search(wanted, k, mask, np.array(also, np.int64))
        found = dict(zip(map(self.index.positions.id_at, places), cosines.tolist(), strict=True))
        assert len(found) == len(places)
        assert found == {id: scores[id] for id in [*dict(ranked(scores, k)), *list(scores)[::2]]}

    @rule(terms=TERMS, k=st.integers(0, 50), marks=st.none() | st.sets(st.integers(-1, 9)))
    def search_words(self, terms: list[str], k: int, marks: set[int] | None) -> None:
        mask = None if marks is None else np.isin(self.column.values, list(marks))
        scores = bm25({id: words for id, (_, words, _) in self.members.items()}, terms)
        visible = {id: score for id, score in scores.items() if marks is None or self.members[id][2] in marks}
        found = worded(self.lexical, terms, k, mask)
        assert [score for _, score in found] == pytest.approx([score for _, score in ranked(visible, k)], rel=1e-5)
        assert dict(found) == pytest.approx({id: visible[id] for id, _ in found}, rel=1e-5)
        _, scored = self.lexical.search(terms, k, mask)
        totals = scored.of(np.arange(len(self.members))).tolist()
        told = {id: total for id, total in zip(self.index.ids(), totals, strict=True) if total}
        assert told == pytest.approx(scores, rel=1e-5)
        assert found == ranked({id: total for id, total in told.items() if id in visible}, k)

    @invariant()
    def everything_lies_at_its_position(self) -> None:
        positions = self.index.positions
        ids = self.index.ids()
        assert len(self.index) == len(ids) == len(self.members)
        assert set(ids) == set(self.members)
        assert [positions[id] for id in ids] == list(range(len(ids)))
        assert [positions.id_at(place) for place in range(len(ids))] == ids
        assert self.column.values.tolist() == [self.members[id][2] for id in ids]
        assert all((self.index.vector(id) == self.members[id][0]).all() for id in ids)
        assert len(self.lexical) == sum(bool(words) for _, words, _ in self.members.values())


class CommonTermsMachine(TierMachine):
    """The same where terms are common from three members on: they change their form all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(postings, "_COMMON_FROM", 2)

    def teardown(self) -> None:
        self.patch.undo()


TestTier = TierMachine.TestCase
TestCommonTerms = CommonTermsMachine.TestCase
TestTier.settings = TestCommonTerms.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@given(seed=st.integers(0, 2**32 - 1), members=st.integers(1, 400), kept=st.sampled_from([0.02, 0.1, 0.5, 0.9, 1.0]))
@settings(max_examples=60, deadline=None)
def test_exact_search_equals_brute_force(seed: int, members: int, kept: float) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((members, 24)).astype(np.float32)
    index = TierIndex(24, "flat")
    index.add([f"f{n:03}" for n in range(members)], vectors)
    mask = rng.random(members) < kept
    query = rng.standard_normal(24).astype(np.float32)
    cosines = unit(vectors) @ unit(query)
    scores = {f"f{n:03}": float(cosines[n]) for n in range(members) if mask[n]}
    found = near(index, query, 10, mask)
    assert len(found) == min(10, len(scores))
    assert [score for _, score in found] == pytest.approx([score for _, score in ranked(scores, 10)], abs=1e-6)
    assert dict(found) == pytest.approx({id: scores[id] for id, _ in found}, abs=1e-6)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_an_empty_tier_and_one_that_hides_everything_answer_nothing(kind: str) -> None:
    index = TierIndex(DIMENSION, kind)
    lexical = LexicalIndex(index.positions)
    assert near(index, axis(0), 5) == [] == worded(lexical, ["a"], 5)
    index.add([], np.empty((0, DIMENSION), np.float32))
    index.add(["f1"], axis(0)[np.newaxis])
    lexical.add("f1", Counter(["a"]))
    hidden = np.zeros(1, np.bool_)
    assert near(index, axis(0), 5, hidden) == [] == worded(lexical, ["a"], 5, hidden)
    assert near(index, axis(0), 5) == [("f1", 1.0)]
    assert index.remove(["f1", "f1", "nobody"]) == 1
    assert near(index, axis(0), 5) == [] == worded(lexical, ["a"], 5)


def test_equals_are_chosen_by_id_at_the_cut_whatever_the_order_of_arrival() -> None:
    ids = [f"f{n:03}" for n in range(300)]
    arrivals = [ids, ids[::-1], [*ids[150:], *ids[:150]]]
    for arrival in arrivals:
        index = TierIndex(DIMENSION, "flat")
        lexical = LexicalIndex(index.positions)
        index.add(arrival, np.tile(axis(3), (300, 1)))
        for id in arrival:
            lexical.add(id, Counter(["same", "words"]))
        few = index.positions.mask(ids[7::50])
        for mask, first in (
            (None, ids[:20]),
            (few, ids[7::50]),
            (~few, [id for id in ids if id not in ids[7::50]][:20]),
        ):
            assert [id for id, _ in near(index, axis(3), 20, mask)] == first
            assert [id for id, _ in worded(lexical, ["words"], 20, mask)] == first


@given(
    seed=st.integers(0, 2**32 - 1),
    dimension=st.integers(1, 400),
    members=st.integers(2, 300),
    kept=st.sampled_from([0.05, 0.6, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_equal_vectors_have_equal_cosines_wherever_they_lie(
    seed: int, dimension: int, members: int, kept: float
) -> None:
    rng = np.random.default_rng(seed)
    index = TierIndex(dimension, "flat")
    index.add([f"f{n}" for n in range(members)], np.tile(rng.standard_normal(dimension), (members, 1)))
    also = np.flatnonzero(rng.random(members) < 0.3)
    query = rng.standard_normal(dimension).astype(np.float32)
    _, cosines = index.search(query, 5, rng.random(members) < kept, also)
    _, of_all = index.search(query, members)
    assert len({*cosines.tolist(), *of_all.tolist()}) == 1


def test_vectors_are_normalised_and_bad_ones_refused_whole() -> None:
    index = TierIndex(2, "flat")
    index.add(["f1"], np.array([[30, 40]], np.float32))
    assert index.vector("f1") == pytest.approx([0.6, 0.8])
    assert near(index, np.array([0, 0.001], np.float32), 1) == [("f1", pytest.approx(0.8))]
    for bad in ([[1, 0], [0, 0]], [[1, 0], [np.nan, 1]], [[1, 0], [np.inf, 1]], [[1, 0]], [[1, 0, 0], [1, 0, 0]]):
        with pytest.raises(ValueError, match="vector"):
            index.add(["f2", "f3"], np.array(bad, np.float32))
    with pytest.raises(ValueError, match="vector"):
        index.search(np.zeros(2, np.float32), 1)
    assert index.ids() == ["f1"]


def test_a_mask_made_for_other_members_is_refused() -> None:
    index = TierIndex(2, "flat")
    lexical = LexicalIndex(index.positions)
    index.add(["f1", "f2"], np.eye(2, dtype=np.float32))
    for mask in (np.ones(1, np.bool_), np.ones(3, np.bool_), np.ones(2, np.int64)):
        with pytest.raises(ValueError, match="mask"):
            index.search(np.ones(2, np.float32), 1, mask)
        with pytest.raises(ValueError, match="mask"):
            lexical.search(["a"], 1, mask)


def test_memory_stays_bounded_through_churn_of_ten_times_the_capacity() -> None:
    capacity = 300
    index = TierIndex(DIMENSION, "flat")
    lexical = LexicalIndex(index.positions)
    for n in range(10 * capacity):
        if len(index) == capacity:
            index.remove([f"f{n - capacity}"])
        index.add([f"f{n}"], axis(n % 8)[np.newaxis])
        lexical.add(f"f{n}", Counter([f"word{n}", "every"]))
    assert len(index._rows) <= 2 * capacity
    assert len(lexical._postings) == capacity + 1
    assert len(near(index, axis(0), capacity)) == len(worded(lexical, ["every"], capacity)) == capacity
    index.remove(index.ids())
    assert not lexical._postings
    assert not lexical._documents
    assert len(lexical) == 0


def test_words_need_a_member_and_replacing_them_replaces_the_statistics() -> None:
    positions = Positions()
    lexical = LexicalIndex(positions)
    with pytest.raises(KeyError):
        lexical.add("f1", Counter(["a"]))
    positions.add(["f1", "f2"])
    lexical.add("f1", Counter(["a", "a", "b"]))
    lexical.add("f2", Counter(["b"]))
    lexical.add("f1", Counter(["c"]))
    assert worded(lexical, ["a"], 5) == []
    expected = bm25({"f1": ["c"], "f2": ["b"]}, ["b", "c", "c"])
    assert worded(lexical, ["c", "b", "c"], 5) == [(id, pytest.approx(s)) for id, s in ranked(expected, 5)]
    lexical.add("f1", Counter([]))
    assert len(lexical) == 1
    for k1, b in ((-1, 0.5), (math.nan, 0.5), (1, 1.1), (1, math.nan)):
        with pytest.raises(ValueError, match="k1"):
            LexicalIndex(positions, k1, b)


@pytest.mark.parametrize("common_from", [2, 4_096])
@pytest.mark.parametrize("at_once", [1, 15, 16, 40])
def test_many_documents_at_once_are_the_same_as_one_after_the_other(
    at_once: int, common_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postings, "_COMMON_FROM", common_from)
    chance = random.Random(at_once)
    one, many = (LexicalIndex(Positions(), k1=0.9, b=0.4) for _ in range(2))
    ids = [f"f{n}" for n in range(60)]
    for _ in range(12):
        documents = {
            id: {f"w{chance.randrange(30)}": chance.choice([1, 2, 70_000]) for _ in range(chance.randrange(6))}
            for id in chance.sample(ids, at_once)
        }
        gone = chance.sample(ids, 8)
        for lexical in (one, many):
            lexical._positions.add(list(documents))
        for id, terms in documents.items():
            one.add(id, terms)
        many.add_all(documents)
        for lexical in (one, many):
            lexical._positions.remove(gone)
        assert len(one) == len(many)
        assert one._corpus.size() == many._corpus.size()
        for query in (["w1"], ["w2", "w3", "w29"], [f"w{n}" for n in range(30)]):
            assert worded(one, query, 60) == worded(many, query, 60)


@pytest.mark.parametrize("common_from", [100, 4_096])
def test_common_words_and_repetition_score_as_defined_in_a_large_tier(
    common_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postings, "_COMMON_FROM", common_from)
    rng = np.random.default_rng(5)
    positions = Positions()
    lexical = LexicalIndex(positions, k1=0.9, b=0.4)
    documents = {
        f"f{n:04}": [f"w{rank}" for rank in np.minimum(rng.zipf(1.3, rng.integers(1, 25)), 60)] for n in range(1500)
    }
    positions.add(list(documents))
    for id, words in documents.items():
        lexical.add(id, Counter(words))
    gone = list(documents)[100:700]
    positions.remove(gone)
    for id in gone:
        del documents[id]
    mask = rng.random(len(positions)) < 0.8
    visible = {id for id, seen in zip(positions.ids(), mask, strict=True) if seen}
    for terms in (["w1"], ["w1", "w2", "w3", "w60"], ["w7", "w7", "w1"], ["w59", "unknown"]):
        scores = {id: s for id, s in bm25(documents, terms, 0.9, 0.4).items() if id in visible}
        found = worded(lexical, terms, 40, mask)
        assert [s for _, s in found] == pytest.approx([s for _, s in ranked(scores, 40)], rel=1e-5)
        assert dict(found) == pytest.approx({id: scores[id] for id, _ in found}, rel=1e-5)


def test_a_term_is_common_while_its_share_of_the_tier_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postings, "_COMMON_FROM", 100)
    positions = Positions()
    lexical = LexicalIndex(positions)

    def add(start: int, end: int, term: str) -> None:
        positions.add([f"f{n:05}" for n in range(start, end)])
        for n in range(start, end):
            lexical.add(f"f{n:05}", {term: 1, f"own{n}": 1})

    def common() -> set[str]:
        return {term for term, found in lexical._postings.items() if found.common}

    add(0, 100, "often")
    assert not common()
    add(100, 150, "often")
    assert common() == {"often"}
    add(150, 1_500, "other")
    assert common() == {"often", "other"}  # a tenth: not yet half of the share
    add(1_500, 3_000, "other")
    assert common() == {"other"}  # though nobody wrote of it
    assert len(worded(lexical, ["often"], 5_000)) == 150
    positions.remove([f"f{n:05}" for n in range(140, 3_000)])
    assert common() == {"often"}
    assert len(worded(lexical, ["often"], 5_000)) == 140
    assert not worded(lexical, ["other"], 5_000)
    positions.remove([f"f{n:05}" for n in range(49, 140)])
    assert not common()
    assert len(worded(lexical, ["often"], 5_000)) == 49
    positions.remove(positions.ids())
    assert not lexical._postings
    assert not lexical._common


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 30), kept=st.sampled_from([0.2, 0.9, 1.0]))
@settings(max_examples=60, deadline=None)
def test_members_that_common_terms_cannot_lift_are_passed_over_and_none_that_they_can(
    seed: int, k: int, kept: float
) -> None:
    rng = np.random.default_rng(seed)
    texts = {f"f{n:03}": [f"w{rank}" for rank in np.minimum(rng.zipf(1.3, 12), 200)] for n in range(300)}
    words = [*texts["f007"], *texts["f011"]]
    query = words + 2 * [word for word in words if int(word[1:]) > 20]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postings, "_COMMON_FROM", 20)
        lexical = LexicalIndex(Positions())
        lexical._positions.add(list(texts))
        lexical.add_all({id: Counter(words) for id, words in texts.items()})
        mask = rng.random(300) < kept
        _, scores = lexical.search(query, k, mask)
        found = worded(lexical, query, k, mask)
    event(f"passed over: {len(scores.contenders(k, mask)) < (scores._rare > 0)[mask].sum()}")
    everyone = dict(zip(texts, scores.of(slice(None)).tolist(), strict=True))
    visible = {id: score for (id, score), seen in zip(everyone.items(), mask, strict=True) if seen and score > 0}
    assert found == ranked(visible, k)


@pytest.mark.parametrize("k1", [0.0, 0.9, 1.2])
def test_equal_texts_score_equally_whatever_form_their_terms_have_where_they_lie(
    k1: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postings, "_COMMON_FROM", 50)
    corpus = Corpus()
    rng = np.random.default_rng(3)
    texts = [[f"w{rank}" for rank in np.minimum(rng.zipf(1.2, 12), 300)] for _ in range(400)]
    lexicals = []
    for order in (range(400), range(60)):
        lexical = LexicalIndex(Positions(), k1=k1, corpus=corpus)
        lexical._positions.add([f"f{n}" for n in order])
        lexical.add_all({f"f{n}": Counter(texts[n]) for n in order})
        lexicals.append(lexical)
    large, small = lexicals
    assert len(large._common) > len(small._common)
    for text in texts[:100]:
        of_large, of_small = (lexical.search(text, 9)[1].of(np.arange(60)).tolist() for lexical in lexicals)
        assert of_large == of_small


class Answers:
    """Counts by which way searches were answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_graph = 0
        monkeypatch.setattr(
            tier_index, "_STEP_COST", 0
        )  # these tiers are small enough for an exact search to cost less
        approximate = TierIndex._approximate

        def counted(*arguments: object) -> object:
            answer = approximate(*arguments)  # type: ignore[arg-type]
            self.by_graph += answer is not None
            return answer

        monkeypatch.setattr(TierIndex, "_approximate", counted)


def clustered(rng: np.random.Generator, count: int, dimension: int = 48) -> np.ndarray:
    centres = np.random.default_rng(7).standard_normal((40, dimension))
    return (centres[rng.integers(0, 40, count)] + 0.6 * rng.standard_normal((count, dimension))).astype(np.float32)


def recall(index: TierIndex, query: np.ndarray, k: int, mask: np.ndarray | None = None) -> float:
    with index.positions.lock:
        ids = index.ids()
        cosines = np.array([index.vector(id) for id in ids]) @ unit(query)
        visible = np.flatnonzero(np.ones(len(ids), np.bool_) if mask is None else mask)
        found = near(index, query, k, mask)
    best = visible[np.argsort(-cosines[visible])[:k]]
    assert len(found) == len(best)
    assert all(score == pytest.approx(cosines[index.positions[id]], abs=1e-5) for id, score in found)
    return len({ids[place] for place in best} & {id for id, _ in found}) / max(1, len(best))


def test_the_graph_keeps_its_recall_through_churn_of_ten_times_the_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch)
    rng = np.random.default_rng(11)
    index = TierIndex(48, "hnsw")
    capacity, batch, seen = 1500, 150, 0
    for _ in range(10 * capacity // batch + 10):
        if len(index) >= capacity:
            index.remove([index.positions.id_at(place) for place in rng.choice(len(index), batch, replace=False)])
        index.add([f"f{seen + n}" for n in range(batch)], clustered(rng, batch))
        replaced = [index.positions.id_at(place) for place in rng.choice(len(index), 15, replace=False)]
        index.add(replaced, clustered(rng, 15))
        seen += batch
        assert len(near(index, clustered(rng, 1)[0], 40)) == 40
    assert index.settle(60)
    graph = index._graph
    assert graph is not None
    assert graph.nodes <= capacity / 0.75 + 256
    answers.by_graph = 0
    recalls = [recall(index, clustered(rng, 1)[0], 40) for _ in range(60)]
    recalls += [recall(index, clustered(rng, 1)[0], 30, rng.random(len(index)) < 0.7) for _ in range(60)]
    assert np.mean(recalls) >= 0.98
    assert answers.by_graph >= 100


def test_where_the_graph_cannot_answer_the_search_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(13)
    index = TierIndex(48, "hnsw")
    vectors = clustered(rng, 1200)
    index.add([f"f{n}" for n in range(1200)], vectors)
    answers = Answers(monkeypatch)
    query = vectors[5]
    assert index.settle(60)
    assert recall(index, query, 20) >= 0.95
    assert answers.by_graph == 1
    far = unit(vectors) @ unit(query) < np.quantile(unit(vectors) @ unit(query), 0.6)
    assert recall(index, query, 30, far) == 1.0  # half and more is visible, but nothing of what the graph proposes
    assert recall(index, query, 30, rng.random(1200) < 0.1) == 1.0
    monkeypatch.setattr(tier_index, "_STEP_COST", 25)
    assert recall(index, query, 20) == 1.0  # so few members cost less than the walk
    assert answers.by_graph == 1


def test_a_graph_follows_what_leaves_moves_and_changes() -> None:
    rng = np.random.default_rng(23)
    positions = Positions()
    graph = HnswGraph(48, positions)
    positions.follow(graph.shrink)
    vectors = dict(zip([f"f{n}" for n in range(300)], unit(clustered(rng, 300)), strict=True))
    positions.add(list(vectors))
    claimed = graph.claim(1000)
    graph.insert(np.array(list(vectors.values()))[claimed])
    positions.remove([f"f{n}" for n in range(0, 120, 4)])
    changed = [f"f{n}" for n in range(1, 300, 20)]
    graph.forget(np.array([positions[id] for id in changed]))
    positions.add([f"new{n}" for n in range(20)])
    covered = {id for id in vectors if id in positions} - set(changed)
    assert (graph.nodes, graph.dead, graph.uncovered) == (300, 45, 35)
    assert {positions.id_at(place) for place in graph.uncovered_positions()} == set(positions.ids()) - covered
    everything, _ = graph.search(vectors["f2"][np.newaxis], 300)
    assert sorted(everything) == sorted(positions[id] for id in covered)
    for id in covered:
        assert positions[id] in graph.search(vectors[id][np.newaxis], 1)[0]


def test_a_changed_vector_is_found_where_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(29)
    index = TierIndex(48, "hnsw")
    vectors = clustered(rng, 600)
    index.add([f"f{n}" for n in range(600)], vectors)
    assert index.settle(60)
    answers = Answers(monkeypatch)
    index.add(["f7"], vectors[400:401])
    assert [id for id, _ in near(index, vectors[400], 2)] == ["f400", "f7"]
    assert "f7" not in dict(near(index, vectors[7], 1))
    assert answers.by_graph == 2


def test_far_members_that_the_graph_does_not_cover_never_stand_in_for_near_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(31)
    index = TierIndex(48, "hnsw")
    vectors = clustered(rng, 1000)
    query = vectors[5]
    index.add([f"f{n}" for n in range(1000)], vectors)
    assert index.settle(60)
    answers = Answers(monkeypatch)
    index.add([f"far{n}" for n in range(100)], -query + 0.1 * clustered(rng, 100))
    mask = np.ones(len(index), np.bool_)
    mask[index.search(query, 400)[0]] = False
    answers.by_graph = 0
    assert recall(index, query, 30, mask) == 1.0
    assert answers.by_graph == 0


def test_auto_gets_a_graph_above_its_size_and_drops_it_below_half() -> None:
    rng = np.random.default_rng(17)
    index = TierIndex(48, "auto", hnsw_above=400)
    index.add([f"f{n}" for n in range(400)], clustered(rng, 400))
    assert index.settle(60)
    assert index._graph is None
    index.add(["one more"], clustered(rng, 1))
    assert index.settle(60)
    assert index._graph is not None
    index.remove([f"f{n}" for n in range(200)])
    assert index.settle(60)
    assert index._graph is not None
    index.remove(["f300"])
    assert index._graph is None
    assert len(near(index, clustered(rng, 1)[0], 300)) == 200


def test_a_closed_index_builds_nothing_and_still_answers() -> None:
    index = TierIndex(48, "hnsw")
    index.close()
    index.add([f"f{n}" for n in range(500)], clustered(np.random.default_rng(19), 500))
    assert index.settle(60)
    assert index._graph is None
    assert len(near(index, clustered(np.random.default_rng(1), 1)[0], 10)) == 10


def test_searches_and_writes_at_once_never_show_what_is_hidden_or_gone() -> None:
    index = TierIndex(48, "auto", hnsw_above=150)
    lexical = LexicalIndex(index.positions)
    shown = index.positions.column(np.bool_, False)
    stop = threading.Event()

    def write(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for round_number in range(40):
            ids = [f"f{seed}-{n}" for n in rng.choice(400, 40, replace=False)]
            with index.positions.lock:
                index.add(ids, clustered(rng, 40))
                for id in ids:
                    lexical.add(id, Counter(["word", id]))
                    shown.values[index.positions[id]] = id.endswith(("0", "2", "4", "6", "8"))
            index.remove([f"f{seed}-{n}" for n in rng.choice(400, 30 + round_number % 20, replace=False)])

    def search(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            query = clustered(rng, 1)[0]
            with index.positions.lock:
                mask = shown.values.copy()
                found = near(index, query, 10, mask), worded(lexical, ["word"], 10, mask)
                members = set(index.ids())
            assert [len(one) for one in found] == [min(10, int(mask.sum()))] * 2
            assert all(id in members and id[-1] in "02468" for one in found for id, _ in one)

    with ThreadPoolExecutor(4) as threads:
        searches = [threads.submit(search, seed) for seed in (3, 4)]
        writes = [threads.submit(write, seed) for seed in (1, 2)]
        wait(writes)
        stop.set()
    for future in writes + searches:
        future.result()
    assert index.settle(60)


def test_every_thread_that_searches_a_graph_uses_one_openmp_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    index = TierIndex(DIMENSION, "hnsw")
    index.add(["f1"], axis(0)[np.newaxis])
    assert index.settle(60)
    answers = Answers(monkeypatch)
    used: list[int] = []

    def search() -> None:
        faiss.omp_set_num_threads(2)
        index.search(axis(0), 1)
        used.append(faiss.omp_get_max_threads())

    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    assert used == [answers.by_graph] == [1]
