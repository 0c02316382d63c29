"""Recall: this service through HTTP and through actor handles, beside what else one could use on the same machine.

    python -m tests.bench.recall --callers 1,16,64 --against inprocess,chroma,qdrant

All answer the same questions about the same log lines. ``inprocess`` is what a plain program does: SentenceTransformer
and CrossEncoder by torch with an HNSW graph. Chroma and Qdrant run in this process too, and get the same vectors, the
same query encoder and, for ``default``, the same reranker as the service. ``recall@10`` is exact: of the lines that
contain all that the question names, the part that is among the best ten (of at most ten). The ceiling is what the
encoder alone does with the same questions in batches, without Ray; the floor is one embedding and one exact search.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from muniment.actors.cross_encoder import load_cross_encoder
from muniment.actors.embedding import SentenceTransformerEmbedder, pick_device
from muniment.actors.onnx_models import OnnxEmbedder, OnnxReranker, builds
from muniment.cluster.settings import load
from tests.bench.logs import DEFAULT_LOG, LogQuery, make_queries, read_lines
from tests.bench.memory import progress
from tests.bench.options import names, numbers
from tests.bench.report import figure, save, stderr, table, write_json
from tests.bench.service import service

RIVALS: Final = ("inprocess", "chroma", "qdrant")
PROFILES: Final = ("fast", "default")
TOP_K: Final = 10
RERANKED: Final = 20
COLUMNS: Final = ("system", "profile", "via", "callers", "qps", "p50_ms", "p99_ms", "recall@10")
_COLOURS: Final = {
    "muniment handle": "#2a6f97",
    "muniment http": "#61a5c2",
    "inprocess local": "#9e2a2b",
    "chroma local": "#e09f3e",
    "qdrant local": "#8d99ae",
}

Ask = Callable[[str, str], Awaitable[list[int]]]
"""From a question and a profile to the positions of the best lines."""


class Absent(Exception):
    """A rival is not installed."""


class Local:
    """A pipeline in this process: embed, search, and for ``default`` rerank. Its one thread is its one queue."""

    def __init__(self, embed: Any, search: Callable[[Any, int], list[int]], rerank: Any, lines: Sequence[str]) -> None:
        self._embed, self._search, self._rerank, self._lines = embed, search, rerank, lines
        self._thread = ThreadPoolExecutor(1)

    async def ask(self, question: str, profile: str) -> list[int]:
        """See ``Ask``."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, question, profile)

    def _answer(self, question: str, profile: str) -> list[int]:
        vector = self._embed([question])[0]
        if profile == "fast":
            return self._search(vector, TOP_K)
        found = self._search(vector, RERANKED)
        scores = np.asarray(self._rerank([(question, self._lines[i]) for i in found]))
        return [found[i] for i in np.argsort(-scores, kind="stable")[:TOP_K]]


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Absent(f"{package} is not installed: pip install 'muniment[bench]'") from None


def inprocess(lines: Sequence[str]) -> Local:
    """SentenceTransformer and CrossEncoder by torch in float32, and a graph by hnswlib."""
    pick_device("cpu", 1)
    encoder = SentenceTransformerEmbedder(device="cpu")
    search = _graph(encoder.embed(lines))
    return Local(encoder.embed, search, load_cross_encoder("bundled", "cpu").predict, lines)


def _graph(vectors: Any) -> Callable[[Any, int], list[int]]:
    """Search in a graph by hnswlib, or where that is not installed by Faiss, with the same parameters."""
    count, dimension = vectors.shape
    try:
        import hnswlib
    except ImportError:
        import faiss

        graph = faiss.IndexHNSWFlat(dimension, 16, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction, graph.hnsw.efSearch = 200, 64
        graph.add(vectors)
        return lambda vector, k: graph.search(vector[None], k)[1][0].tolist()
    index = hnswlib.Index("cosine", dimension)
    index.init_index(count, ef_construction=200, M=16)
    index.set_num_threads(1)
    index.add_items(vectors, np.arange(count))
    index.set_ef(64)
    return lambda vector, k: index.knn_query(vector, k)[0][0].tolist()


def chroma(lines: Sequence[str], vectors: Any, encoder: OnnxEmbedder, reranker: OnnxReranker) -> Local:
    """Chroma, in memory."""
    made = (
        _module("chromadb", "chromadb").EphemeralClient().create_collection("bench", metadata={"hnsw:space": "cosine"})
    )
    for start in range(0, len(lines), 1_000):
        ids = [str(i) for i in range(start, min(start + 1_000, len(lines)))]
        part = slice(start, start + 1_000)
        made.add(ids=ids, embeddings=vectors[part].tolist(), documents=list(lines[part]))

    def search(vector: Any, k: int) -> list[int]:
        return [int(i) for i in made.query(query_embeddings=[vector.tolist()], n_results=k)["ids"][0]]

    return Local(encoder.embed, search, reranker.predict, lines)


def qdrant(lines: Sequence[str], vectors: Any, encoder: OnnxEmbedder, reranker: OnnxReranker) -> Local:
    """Qdrant's client with its local store, in memory."""
    module = _module("qdrant_client", "qdrant-client")
    models, client = module.models, module.QdrantClient(":memory:")
    space = models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE)
    client.create_collection("bench", vectors_config=space)
    client.upload_collection("bench", vectors, payload=[{"text": line} for line in lines], ids=list(range(len(lines))))

    def search(vector: Any, k: int) -> list[int]:
        return [int(p.id) for p in client.query_points("bench", query=vector.tolist(), limit=k).points]

    return Local(encoder.embed, search, reranker.predict, lines)


def relevant_lines(queries: Sequence[LogQuery], lines: Sequence[str]) -> list[set[int]]:
    """For each question, the lines that contain all it names."""
    lowered = [line.lower() for line in lines]
    return [{i for i, line in enumerate(lowered) if all(e in line for e in q.entities)} for q in queries]


async def measure(
    ask: Ask, profile: str, callers: int, queries: Sequence[LogQuery], relevant: Sequence[set[int]]
) -> dict[str, Any]:
    """Closed loop: each caller asks its next question when the last is answered; each asks some before it counts."""
    times: list[float] = []
    shares: list[float] = []
    turn = iter(range(len(queries)))

    async def caller() -> None:
        for i in turn:
            started = time.perf_counter()
            found = await ask(queries[i].text, profile)
            times.append((time.perf_counter() - started) * 1000)
            shares.append(len(set(found[:TOP_K]) & relevant[i]) / min(TOP_K, len(relevant[i])))

    await asyncio.gather(*(ask(query.text, profile) for query in queries[: min(callers, 8)]))
    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    seconds = time.perf_counter() - started
    return {
        "profile": profile,
        "callers": callers,
        "qps": len(times) / seconds,
        "p50_ms": float(np.percentile(times, 50)),
        "p99_ms": float(np.percentile(times, 99)),
        "recall@10": float(np.mean(shares)),
    }


async def store(client: Any, lines: Sequence[str]) -> dict[str, int]:
    """Tells the service the lines; their positions by id."""
    places: dict[str, int] = {}
    with progress("storing", len(lines)) as advance:
        for start in range(0, len(lines), 200):
            part = lines[start : start + 200]
            told = [{"text": line, "source": {"kind": "system_of_record", "id": "log"}} for line in part]
            answer = await client.remember(told)
            places |= {result["id"]: start + i for i, result in enumerate(answer["results"])}
            advance(len(part))
    return places


def floor_and_ceiling(
    encoder: OnnxEmbedder, reranker: OnnxReranker, vectors: Any, lines: Sequence[str], queries: Sequence[LogQuery]
) -> dict[str, float]:
    """``floor_ms``: one embedding and one exact search, p50. ``ceiling_qps``: what the models do alone, by profile."""
    times = []
    for query in queries:
        started = time.perf_counter()
        near = np.argpartition(-(vectors @ encoder.embed([query.text])[0]), TOP_K)
        times.append(time.perf_counter() - started)
    texts = [query.text for query in queries]
    started = time.perf_counter()
    for start in range(0, len(texts), 32):
        encoder.embed(texts[start : start + 32])
    embedding = (time.perf_counter() - started) / len(texts)
    some = texts[:10]
    started = time.perf_counter()
    for text in some:
        reranker.predict([(text, lines[i]) for i in near[:RERANKED]])
    reranking = (time.perf_counter() - started) / len(some)
    return {
        "floor_ms": float(np.median(times)) * 1000,
        "ceiling_qps_fast": 1 / embedding,
        "ceiling_qps_default": 1 / (embedding + reranking),
    }


def systems(
    against: Sequence[str], lines: Sequence[str], vectors: Any, encoder: OnnxEmbedder, reranker: OnnxReranker
) -> dict[str, Ask]:
    """The rivals that are installed; of the others one line says what is missing."""
    makers: dict[str, Callable[[], Local]] = {
        "inprocess": lambda: inprocess(lines),
        "chroma": lambda: chroma(lines, vectors, encoder, reranker),
        "qdrant": lambda: qdrant(lines, vectors, encoder, reranker),
    }
    made: dict[str, Ask] = {}
    for name in against:
        try:
            made[name] = makers[name]().ask
        except Absent as absent:
            stderr.print(f"{name}: left out, {absent}", highlight=False, markup=False)
    return made


async def run(options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """All rows: in turns, so that a busy moment of the machine hits all systems."""
    lines = list(dict.fromkeys(read_lines(options.log)))[: options.facts]
    queries = make_queries(lines, "bgl", options.queries, 42)
    relevant = relevant_lines(queries, lines)
    folders = builds([("embedder", "bundled"), ("reranker", "bundled")], load().workers.cache_dir)
    encoder, reranker = OnnxEmbedder(folders[0]), OnnxReranker(folders[1])
    vectors = encoder.embed(lines)
    rivals = systems(options.against, lines, vectors, encoder, reranker)
    rows: list[dict[str, Any]] = []
    with service() as running:
        async with running.client("http") as http, running.client("handle") as handle:
            places = await store(http, lines)

            def through(client: Any) -> Ask:
                async def ask(question: str, profile: str) -> list[int]:
                    answer = await client.recall(question, top_k=TOP_K, profile=profile)
                    return [places[result["fact"]["id"]] for result in answer["results"]]

                return ask

            asked = {("muniment", "handle"): through(handle), ("muniment", "http"): through(http)}
            asked |= {(name, "local"): ask for name, ask in rivals.items()}
            before = floor_and_ceiling(encoder, reranker, vectors, lines, queries)
            work = [(p, c, who) for p in PROFILES for c in options.callers for who in asked]
            with progress("asking", len(work)) as advance:
                for profile, callers, who in work:
                    share = queries if profile == "fast" else queries[: max(10, len(queries) // 4)]
                    row = await measure(asked[who], profile, callers, share, relevant)
                    rows.append({"system": who[0], "via": who[1], **row})
                    advance(1)
            after = floor_and_ceiling(encoder, reranker, vectors, lines, queries)
    return rows, {name: (before[name] + after[name]) / 2 for name in before}


def ratios(rows: Sequence[dict[str, Any]], limits: dict[str, float]) -> dict[str, float]:
    """What is to be compared, each against its floor, ceiling or rival of the same run."""
    at = {(r["system"], r["via"], r["profile"], r["callers"]): r for r in rows}
    found = {}
    ours = at.get(("muniment", "handle", "fast", 1))
    if ours:
        found["fast, one caller, ms above the floor"] = ours["p50_ms"] - limits["floor_ms"]
    for profile in PROFILES:
        for rival in RIVALS:
            mine, theirs = at.get(("muniment", "handle", profile, 1)), at.get((rival, "local", profile, 1))
            if mine and theirs:
                found[f"{profile}, one caller, p50 over {rival}"] = mine["p50_ms"] / theirs["p50_ms"]
        most = max(r["callers"] for r in rows)
        row = at[("muniment", "handle", profile, most)]
        found[f"{profile}, {most} callers, throughput over the models alone"] = (
            row["qps"] / limits[f"ceiling_qps_{profile}"]
        )
    return found


def plot(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """The median time of one caller, by system and profile."""
    least = min(row["callers"] for row in rows)
    made, axes = figure()
    bars = [row for row in rows if row["callers"] == least]
    places = {profile: i for i, profile in enumerate(PROFILES)}
    kinds = list(dict.fromkeys(f"{row['system']} {row['via']}" for row in bars))
    width = 0.8 / len(kinds)
    for number, kind in enumerate(kinds):
        shown = [row for row in bars if f"{row['system']} {row['via']}" == kind]
        x = [places[row["profile"]] + (number - (len(kinds) - 1) / 2) * width for row in shown]
        drawn = axes.bar(x, [row["p50_ms"] for row in shown], width * 0.95, color=_COLOURS[kind], label=kind)
        axes.bar_label(drawn, fmt="%.0f", fontsize=8, padding=2)
    axes.set_xticks(list(places.values()), list(places))
    axes.set_ylabel("p50, ms (lower is better)")
    axes.set_title(f"One recall at {least} caller{'s' if least > 1 else ''}", loc="left")
    axes.legend(frameon=False, fontsize=8)
    save(made, folder, "recall")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.recall", description=__doc__.split("\n")[0])
    parser.add_argument("--callers", type=numbers, default=[1, 16, 64], help="concurrent callers")
    parser.add_argument("--against", type=names(*RIVALS), default=list(RIVALS), help=", ".join(RIVALS))
    parser.add_argument("--log", type=Path, default=DEFAULT_LOG, help="a log of BlueGene/L")
    parser.add_argument("--facts", type=int, default=2_000, help="lines stored, at most")
    parser.add_argument("--queries", type=int, default=200, help="questions a measurement (default profile: a quarter)")
    parser.add_argument("--out", type=Path, help="write the result there, as JSON")
    parser.add_argument("--plots", type=Path, help="write plots into this folder, as PNG")
    options = parser.parse_args()
    rows, limits = asyncio.run(run(options))
    table("recall", rows, COLUMNS)
    compared = ratios(rows, limits)
    table("ratios", [{"what": k, "ratio": v} for k, v in compared.items()], ("what", "ratio"))
    write_json(options.out, {"rows": rows, **limits, "ratios": compared})
    if options.plots:
        plot(rows, options.plots)


if __name__ == "__main__":
    main()
