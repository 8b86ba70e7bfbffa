"""Building and searching the knowledge base's index: exact against two approximate ones, with their recall.

    .venv/bin/python benchmarks/knowledge_base.py [--keys 10000 100000] [--queries 1000] [--rounds 5]

Random unit vectors in clusters, queries drawn from the same clusters. All indices of a size take turns in one process; FAISS' BLAS
threshold is the library's. `--keys 1000000` adds the size up to which the library searches exactly (some minutes, most
of them HNSW's). Runs on the CPU.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import faiss
import numpy as np

from sfumato.retrieval import knowledge_base  # sets FAISS' BLAS threshold, as for every search of the library

FEATURES = 128
CLUSTER = 100
"""Keys of a cluster on average."""
NEIGHBOURS, WIDTH = 32, 64
"""HNSW: links of a key, candidates kept in a search (and twice as many while it is built)."""
SEED = 0


def main() -> None:
    """Build and search every index at every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000], help="sizes (default: 1e4 and 1e5)")
    parser.add_argument("--queries", type=int, default=1000, help="queries of one call (default: 1000)")
    parser.add_argument(
        "--spread",
        type=float,
        default=1.0,
        help="offset of a key from its centre (default: 1; at 2 a million keys hardly cluster)",
    )
    parser.add_argument("--no-graph", action="store_true", help="leave out HNSW, whose build takes the most time")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of searching (default: 5)")
    arguments = parser.parse_args()
    print(
        f"{FEATURES} features, clusters of about {CLUSTER}, offset {arguments.spread:g}; {arguments.queries} queries a call, median of {arguments.rounds} interleaved "
        f"rounds; {faiss.omp_get_max_threads()} thread(s), faiss {faiss.__version__}\n"
    )
    head = ["keys", "index", "build, s", "search, us a query", "of exact", "recall@1"]
    print("| " + " | ".join(head) + " |")
    print("| " + " | ".join(["---"] * len(head)) + " |")
    for count in arguments.keys:
        for row in compared(count, arguments):
            print("| " + " | ".join(row) + " |", flush=True)


def compared(count: int, arguments: argparse.Namespace) -> list[list[str]]:
    """One row for each index over `count` keys."""
    queries, spread = arguments.queries, arguments.spread
    random = np.random.default_rng(SEED)
    centres = random.standard_normal((max(1, count // CLUSTER), FEATURES), dtype=np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    keys, questions = (clustered(centres, size, spread, random) for size in (count, queries))
    indices, built = {}, {}
    for name, build in builders(not arguments.no_graph).items():
        started = time.perf_counter()
        indices[name] = build(keys)
        built[name] = time.perf_counter() - started
    answers, taken = {}, {name: [] for name in indices}
    for turn in range(arguments.rounds + 1):
        for name, index in indices.items():
            started = time.perf_counter()
            answers[name] = index.search(questions, 1)[1][:, 0]
            if turn:  # the first round warms up
                taken[name].append(time.perf_counter() - started)
    exact = next(iter(indices))
    seconds = {name: statistics.median(values) for name, values in taken.items()}
    return [
        [
            *(f"{count:,}", name, f"{built[name]:.2f}", f"{seconds[name] / queries * 1e6:.1f}"),
            *(f"{seconds[name] / seconds[exact]:.2f}", f"{np.mean(answers[name] == answers[exact]):.3f}"),
        ]
        for name in indices
    ]


def clustered(centres: np.ndarray, count: int, spread: float, random: np.random.Generator) -> np.ndarray:
    """Unit vectors `[count, features]` about centres of length 1, chosen at random, with offsets of length `spread`."""
    offsets = random.standard_normal((count, FEATURES), dtype=np.float32) * np.float32(spread / FEATURES**0.5)
    vectors = centres[random.integers(len(centres), size=count)] + offsets
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def builders(graph: bool) -> dict[str, Callable[[np.ndarray], faiss.Index]]:
    """Name -> how an index is built; the first is exact."""
    indices = {
        "exact (the library's)": knowledge_base.exact_index,
        "IVF (the library's beyond a million keys)": knowledge_base.inverted_index,
    }
    return indices | ({f"HNSW, {NEIGHBOURS} links, {WIDTH} candidates": graph_index} if graph else {})


def graph_index(keys: np.ndarray) -> faiss.Index:
    """Hierarchical navigable small world: the alternative that the library does not use."""
    index = faiss.IndexHNSWFlat(keys.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = 2 * WIDTH, WIDTH
    index.add(keys)
    return index


if __name__ == "__main__":
    main()
