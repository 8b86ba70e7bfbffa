"""The trajectory knowledge base: public latents at time v, found by the features of their latents at time k.

For each public reference image one noise draw makes the whole trajectory: x_k and x_v with the *same* noise, k > v
(Jiang et al. 2025, appendix D.1; section 3.3 iterates Eq. 1, a Markov chain of fresh noise). Keys are the unit features of the image that x_k denoises to in one step; values are
x_v. Beyond the paper, a key may be averaged over several noise draws, or be that of the clean image; and a base without keys
gives trajectories at random, where no key would tell more. Search is exact (FAISS, inner product of unit vectors = cosine), with one index per class where retrieval is by class.
An index of more than `EXACT_KEYS` keys is an inverted file instead, which misses some neighbours: its recall is measured and
reported. Where FAISS is not installed, as for the recipient of a model, every search is exact, by a matrix product.
Not covered: bases that do not fit into memory.
"""

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato.diffusion.objective import normal
from sfumato.diffusion.schedule import NoiseSchedule, add_noise
from sfumato.progress import Progress, silent
from sfumato.retrieval.features import FeatureMap
from sfumato.retrieval.settings import QuerySettings

BLAS_QUERIES_PER_THREAD = 800
"""FAISS leaves BLAS below 1,000 queries a call with few threads, which makes small batches 12 to 20 times slower."""
CHUNK = 4096
"""Images per batch while keys are made."""
PRODUCTS = 2**26
"""Numbers that a matrix product holds at once: a quarter of a gigabyte."""
NOISE_APART = 500_009
"""Between a run's seed, by which queries are noised and images begin, and that of the trajectories' noise. By one seed the n-th query and the n-th
trajectory would have the same noise, and find each other by it."""

EXACT_KEYS = 1_000_000
"""The most keys that one index searches exactly; see benchmarks/knowledge_base.py."""
LISTS_PER_ROOT = 4
"""Lists of an inverted file over n keys, in units of the square root of n (FAISS' guideline: 4 to 16)."""
PROBED = 1 / 32
"""Share of the lists that a query searches."""
KEYS_PER_LIST = 40
"""Keys per list for k-means: just above the number at which FAISS warns of too few."""


class Index(Protocol):
    """A search index over keys, FAISS' or ours."""

    def search(self, queries: np.ndarray, count: int, /) -> tuple[np.ndarray, np.ndarray]:
        """Inner products and rows `[b, count]` of the nearest keys to queries `[b, features]`, nearest first; row -1 for no key."""


@dataclass(frozen=True, eq=False)
class MatrixIndex:
    """Compares a query with every key by a matrix product, where FAISS is not installed."""

    keys: Tensor
    """`[n, features]`."""

    def search(self, queries: np.ndarray, count: int, /) -> tuple[np.ndarray, np.ndarray]:
        """Inner products and rows `[b, count]` of the nearest keys, nearest first."""
        at_once = max(1, PRODUCTS // max(1, len(self.keys)))
        nearest = [(part @ self.keys.T).topk(count) for part in torch.from_numpy(queries).split(at_once)]
        return torch.cat([one.values for one in nearest]).numpy(), torch.cat([one.indices for one in nearest]).numpy()


@functools.cache
def searching() -> Any:
    """FAISS, set once to use BLAS for small batches; None where it is not installed."""
    try:
        import faiss
    except ModuleNotFoundError:
        return None
    faiss.cvar.distance_compute_blas_threshold = BLAS_QUERIES_PER_THREAD * faiss.omp_get_max_threads()
    return faiss


@dataclass(frozen=True)
class KnowledgeBase:
    """Keys, trajectories and the indices over them."""

    keys: Tensor
    """`[n, features]`, unit vectors; `[n, 0]` where trajectories are taken at random."""
    images: Tensor
    """`[n, c, h, w]`, the clean public images, or their latents where the denoiser works on these."""
    noise: Tensor
    """`[n, c, h, w]`, the noise that makes each image's trajectory."""
    labels: Tensor
    """`[n]`, public classes."""
    by_class: bool
    """Whether a query may be confined to one public class."""
    time: int = 0
    """k, the time of the keys; 0 in bases of earlier versions, where the settings say it, and without keys."""
    rows: dict[int, np.ndarray] = field(init=False, repr=False, compare=False)
    """Class (-1: all) -> its row numbers."""
    indices: dict[int, Index] = field(init=False, repr=False, compare=False)
    """Class (-1: all) -> index over its keys; empty without keys."""

    def __post_init__(self) -> None:
        rows = {-1: np.arange(len(self.keys))}
        if self.by_class:
            labels = self.labels.cpu().numpy()
            rows |= {int(label): np.flatnonzero(labels == label) for label in np.unique(labels)}
        keys = self.keys.cpu().numpy()
        object.__setattr__(self, "rows", rows)
        indices = {label: _index(keys[part]) for label, part in rows.items()} if self.has_keys else {}
        object.__setattr__(self, "indices", indices)

    @property
    def has_keys(self) -> bool:
        """Whether a trajectory is looked up; otherwise it is taken at random."""
        return self.keys.shape[1] > 0

    def without_keys(self) -> "KnowledgeBase":
        """The same trajectories, to be taken at random."""
        return replace(self, keys=self.keys[:, :0], time=0)

    def taken(self, count: int, classes: Tensor, generator: torch.Generator) -> Tensor:
        """Rows `[b, count]`, each taken at random from its public class of `classes` `[b]`; from all where there is no such class."""
        wanted = classes.cpu().numpy()
        uniform = torch.rand(len(wanted), count, generator=generator, device=generator.device).cpu().numpy()
        rows = np.empty(uniform.shape, dtype=np.int64)
        for label in np.unique(wanted):
            among, mine = self.rows.get(int(label), self.rows[-1]), np.flatnonzero(wanted == label)
            rows[mine] = among[(uniform[mine] * len(among)).astype(np.int64).clip(max=len(among) - 1)]
        return torch.as_tensor(rows, device=classes.device)

    def search(self, queries: Tensor, count: int, classes: Tensor | None = None) -> Tensor:
        """Rows of the `count` nearest keys to `queries` `[b, features]`: `[b, count]`, nearest first.

        With `classes` `[b]`, only keys of the wanted public class are searched. A class with fewer keys than `count`
        repeats them in order; a class without any, which noisy votes may choose, is served from all keys.
        """
        wanted = np.full(len(queries), -1) if classes is None else classes.cpu().numpy()
        vectors = np.ascontiguousarray(queries.detach().float().cpu().numpy())
        nearest = np.empty((len(vectors), count), dtype=np.int64)
        for label in np.unique(wanted):
            known, mine = int(label) if int(label) in self.rows else -1, np.flatnonzero(wanted == label)
            index, rows = self.indices[known], self.rows[known]
            near = index.search(vectors[mine], min(count, len(rows)))[1]
            near = np.where(near < 0, near[:, :1], near)
            nearest[mine] = rows[np.pad(near, ((0, 0), (0, count - near.shape[1])), mode="wrap")]
        return torch.as_tensor(nearest, device=queries.device)

    def value(self, schedule: NoiseSchedule, rows: Tensor, time: int) -> Tensor:
        """The latents at `time` = v of the trajectories `rows` `[b, m]`: `[b, c, h, w]`.

        For m > 1 the m clean images are averaged and carry the noise of the nearest, so that the latent keeps the
        noise level of time v.
        """
        rows = rows.to(self.images.device)
        t = torch.full((len(rows),), time, device=rows.device)
        return add_noise(schedule, self.images[rows].mean(1), t, self.noise[rows[:, 0]])


def _index(keys: np.ndarray) -> Index:
    """Exact up to `EXACT_KEYS` keys, an inverted file beyond; exact without FAISS."""
    if searching() is None:
        return MatrixIndex(torch.from_numpy(np.ascontiguousarray(keys, dtype=np.float32)))
    return exact_index(keys) if len(keys) <= EXACT_KEYS else inverted_index(keys)


def exact_index(keys: np.ndarray) -> Index:
    """Compares a query with every key `[n, features]`."""
    index = searching().IndexFlatIP(keys.shape[1])
    index.add(np.ascontiguousarray(keys, dtype=np.float32))
    return index


def inverted_index(keys: np.ndarray) -> Index:
    """Compares a query with the keys `[n, features]` of the lists whose centres are nearest to it (FAISS IndexIVFFlat)."""
    keys = np.ascontiguousarray(keys, dtype=np.float32)
    lists = max(1, min(round(LISTS_PER_ROOT * math.sqrt(len(keys))), len(keys) // KEYS_PER_LIST))
    library = searching()
    centres = library.IndexFlatIP(keys.shape[1])
    index = library.IndexIVFFlat(centres, keys.shape[1], lists, library.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid = KEYS_PER_LIST
    index.train(keys)
    index.add(keys)
    index.nprobe = max(1, math.ceil(PROBED * lists))
    return index


@torch.no_grad()
def build_knowledge_base(
    features: FeatureMap,
    images: Tensor,
    labels: Tensor,
    *,
    time: int,
    by_class: bool,
    seed: int,
    most: int = 0,
    query: QuerySettings = QuerySettings(),
    progress: Progress = silent,
) -> KnowledgeBase:
    """The knowledge base of public reference `images` `[n, c, h, w]`, or of the first `most`, with keys at `time` = k.

    Many parameters: public images, the query that they are keyed for, and how many are kept.
    """
    images, labels = images[: most or None], labels[: most or None]
    generator = torch.Generator(images.device).manual_seed(seed + NOISE_APART)
    made, noises = [], []
    parts = list(zip(images.split(CHUNK), labels.split(CHUNK), strict=True))
    looks = 1 if query.clean_keys else query.key_draws
    for number, (x, y) in enumerate(parts):
        first, noise = features.noised(x, time, generator, y)
        if query.clean_keys:
            first = features.encoder(x)
        for look in range(1, looks):
            progress(number * looks + look, len(parts) * looks)
            first = first + features.noised(x, time, generator, y)[0]
        made.append(F.normalize(first, dim=1) if looks > 1 else first)
        noises.append(noise)
        progress((number + 1) * looks, len(parts) * looks)
    return KnowledgeBase(torch.cat(made), images, torch.cat(noises), labels, by_class, time)


def base_without_keys(images: Tensor, labels: Tensor, *, by_class: bool, seed: int, most: int = 0) -> KnowledgeBase:
    """The trajectories of public reference `images` `[n, c, h, w]`, or of the first `most`, to be taken at random."""
    images, labels = images[: most or None], labels[: most or None]
    generator = torch.Generator(images.device).manual_seed(seed + NOISE_APART)
    return KnowledgeBase(images.new_empty(len(images), 0), images, normal(images, generator), labels, by_class)


@torch.no_grad()
def search_recall(base: KnowledgeBase, features: FeatureMap, images: Tensor, *, seed: int) -> float:
    """Share of public queries `[n, c, h, w]` for which the search of all keys finds the exactly nearest one.

    1 without measuring where that search is exact. Searches within a class are not measured by themselves.
    """
    library = searching()
    if library is None or not base.has_keys or len(base.keys) <= EXACT_KEYS:
        return 1.0
    generator = torch.Generator(images.device).manual_seed(seed)
    queries = features.noised(images, base.time, generator)[0]
    vectors, keys = (np.ascontiguousarray(part.float().cpu().numpy()) for part in (queries, base.keys))
    nearest = library.knn(vectors, keys, 1, metric=library.METRIC_INNER_PRODUCT)[1]
    return float((base.search(queries, 1).cpu().numpy() == nearest).mean())
