"""Search against brute force, trajectories against their formula, and a base that comes back from disk as it was."""

import json
import math
import os

import faiss
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from artifacts import serialization
from sfumato.config import Schedule
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.diffusion.schedule import make_schedule
from sfumato.retrieval import knowledge_base as module
from sfumato.retrieval.features import FeatureMap, OneStep
from sfumato.retrieval.knowledge_base import (
    BLAS_QUERIES_PER_THREAD,
    KnowledgeBase,
    MatrixIndex,
    base_without_keys,
    build_knowledge_base,
    search_recall,
)
from sfumato.retrieval.settings import QuerySettings

T = 40
SCHEDULE = make_schedule(Schedule(timesteps=T, beta_start=0.01, beta_end=0.2))


def level(t):
    """alpha_bar from scratch."""
    return math.prod(1 - (0.01 + 0.19 * i / (T - 1)) for i in range(t))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def unit(count, features=8, seed=0):
    return F.normalize(torch.randn(count, features, generator=generator(seed)), dim=1)


def base(count=300, classes=6, by_class=True, features=8):
    images = torch.rand(count, 1, 3, 3, generator=generator(1)) * 2 - 1
    noise = torch.randn(count, 1, 3, 3, generator=generator(2))
    labels = torch.randint(0, classes, (count,), generator=generator(3))
    return KnowledgeBase(unit(count, features), images, noise, labels, by_class)


def digits(count=500):
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images[:count] / 8 - 1).float().view(-1, 1, 8, 8), torch.from_numpy(labels[:count]).long()


class Pixels(nn.Module):
    """The pixels, as unit vectors: features that tell the digits apart."""

    def forward(self, x):
        return F.normalize(x.flatten(1), dim=1)


@pytest.fixture(params=["faiss", "without"])
def searched(request, monkeypatch):
    """With FAISS, and where it is not installed."""
    if request.param == "without":
        monkeypatch.setattr(module, "searching", lambda: None)
        monkeypatch.setattr(module, "PRODUCTS", 1000)  # a few queries at once


class Chance(nn.Module):
    """Features that have nothing to do with the image."""

    def forward(self, x):
        return unit(len(x), seed=int(x.abs().sum() * 1000) % 2**31)


def nothing(x, t, y):
    """A denoiser that predicts no noise."""
    return torch.zeros_like(x)


def through(denoise, encoder=None, schedule=SCHEDULE):
    """Features of one-step images."""
    return FeatureMap(OneStep(schedule, denoise), encoder or Pixels())


PIXELS = through(nothing)


@pytest.mark.usefixtures("searched")
@pytest.mark.parametrize("count", [1, 5, 300])
def test_search_finds_the_largest_cosines_in_order(count):
    knowledge, queries = base(), 3 * torch.randn(40, 8, generator=generator(7))
    cosine = F.cosine_similarity(queries[:, None].double(), knowledge.keys[None].double(), dim=2)
    assert torch.equal(knowledge.search(queries, count), cosine.argsort(1, descending=True)[:, :count])


@pytest.mark.usefixtures("searched")
@pytest.mark.parametrize("count", [1, 4])
def test_search_by_class_is_brute_force_within_the_class(count):
    knowledge, queries = base(), unit(60, seed=7)
    wanted = torch.arange(60) % 6
    result = knowledge.search(queries, count, wanted)
    assert torch.equal(knowledge.labels[result], wanted[:, None].expand(60, count)), "it never leaves the class"
    cosine = (queries.double() @ knowledge.keys.T.double()).masked_fill(knowledge.labels[None] != wanted[:, None], -9)
    assert torch.equal(result, cosine.argsort(1, descending=True)[:, :count])


@pytest.mark.usefixtures("searched")
def test_no_class_searches_them_all():
    knowledge, queries = base(), unit(60, seed=7)
    classes = torch.full((60,), NO_CLASS)
    classes[::2] = 3
    mixed = knowledge.search(queries, 2, classes)
    assert torch.equal(mixed[1::2], knowledge.search(queries, 2)[1::2])
    assert (knowledge.labels[mixed[::2]] == 3).all()


@pytest.mark.usefixtures("searched")
def test_a_class_with_fewer_keys_than_asked_for_repeats_its_own():
    labels = torch.tensor([0] * 20 + [1] * 2 + [2])
    knowledge = KnowledgeBase(unit(23), torch.zeros(23, 1, 2, 2), torch.zeros(23, 1, 2, 2), labels, True)
    result = knowledge.search(unit(9, seed=4), 5, torch.arange(9) % 3)
    assert result.shape == (9, 5) and torch.equal(knowledge.labels[result], (torch.arange(9) % 3)[:, None].expand(9, 5))
    near = (unit(9, seed=4) @ knowledge.keys.T).masked_fill(labels[None] != (torch.arange(9) % 3)[:, None], -9)
    assert torch.equal(result[:, 0], near.argmax(1)), "the nearest stays first"
    assert all(set(row.tolist()) == {20, 21} for row in result[1::3]) and (result[2::3] == 22).all()


@pytest.mark.usefixtures("searched")
def test_more_than_all_keys_repeat_too():
    knowledge = base(count=3)
    result = knowledge.search(unit(4, seed=5), 7)
    assert all(set(row.tolist()) == {0, 1, 2} for row in result)


@pytest.mark.usefixtures("searched")
def test_a_class_without_any_key_is_served_from_the_whole_base():
    """Noise can let a public class win the votes that the base holds no image of."""
    labels = torch.tensor([0, 0, 2, 2])
    knowledge = KnowledgeBase(unit(4), torch.zeros(4, 1, 2, 2), torch.zeros(4, 1, 2, 2), labels, True)
    queries = unit(6, seed=2)
    assert torch.equal(knowledge.search(queries, 2, torch.ones(6, dtype=torch.long)), knowledge.search(queries, 2))


@pytest.mark.usefixtures("searched")
@pytest.mark.parametrize("by_class", [False, True])
def test_no_queries_find_nothing(by_class):
    result = base().search(torch.zeros(0, 8), 3, torch.zeros(0, dtype=torch.long) if by_class else None)
    assert result.shape == (0, 3)


@pytest.mark.parametrize("nearest", [1, 3])
def test_a_value_is_the_mean_image_with_the_noise_of_the_nearest(nearest):
    knowledge, rows, v = base(), torch.randint(0, 300, (10, nearest), generator=generator(9)), 12
    result = knowledge.value(SCHEDULE, rows, v)
    for got, row in zip(result, rows, strict=True):
        mean = sum(knowledge.images[i] for i in row) / nearest
        expected = math.sqrt(level(v)) * mean + math.sqrt(1 - level(v)) * knowledge.noise[row[0]]
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("chunk", [4096, 16])
def test_keys_and_values_lie_on_one_trajectory(chunk, monkeypatch):
    """x_k and x_v carry the SAME noise (Jiang et al. 2025, section 3.3), however the images were cut into pieces."""
    monkeypatch.setattr(module, "CHUNK", chunk)
    seen = []

    def denoise(x, t, y):
        seen.append(x)
        assert (t == 30).all() and (y == NO_CLASS).all()
        return torch.zeros_like(x)

    x, y = digits(50)
    knowledge = build_knowledge_base(through(denoise), x, y, time=30, by_class=False, seed=4)
    x_k = torch.cat(seen)
    eps = (x_k - math.sqrt(level(30)) * x) / math.sqrt(1 - level(30))
    x_v = math.sqrt(level(8)) * x + math.sqrt(1 - level(8)) * eps
    torch.testing.assert_close(knowledge.value(SCHEDULE, torch.arange(50)[:, None], 8), x_v, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(knowledge.keys, Pixels()((x_k / math.sqrt(level(30))).clamp(-1, 1)))
    assert len(knowledge.noise.flatten(1).unique(dim=0)) == 50 and float(eps.std()) == pytest.approx(1, rel=0.05)
    assert torch.equal(knowledge.labels, y) and torch.equal(knowledge.images, x)


def test_the_seed_decides_the_trajectories():
    x, y = digits(30)
    bases = [build_knowledge_base(PIXELS, x, y, time=30, by_class=False, seed=s) for s in (4, 4, 5)]
    assert torch.equal(bases[0].noise, bases[1].noise) and not torch.equal(bases[0].noise, bases[2].noise)


def test_a_smaller_base_holds_the_first_trajectories_alone():
    x, y = digits(30)
    whole, small = (build_knowledge_base(PIXELS, x, y, time=30, by_class=True, seed=4, most=most) for most in (0, 7))
    assert len(whole.keys) == 30 and len(small.keys) == len(small.noise) == 7
    assert torch.equal(small.images, x[:7]) and torch.equal(small.labels, y[:7])


@pytest.mark.parametrize("by_class", [False, True])
def test_a_base_comes_back_from_disk_as_it_was(tmp_path, by_class):
    knowledge, queries, classes = base(by_class=by_class), unit(30, seed=7), torch.arange(30) % 6
    serialization.save_base(tmp_path, knowledge)
    again = serialization.load_base(tmp_path, torch.device("cpu"))
    assert again.by_class == by_class
    for name in ("keys", "images", "noise", "labels"):
        assert torch.equal(getattr(again, name), getattr(knowledge, name)), name
    requested = classes if by_class else None
    assert torch.equal(again.search(queries, 4, requested), knowledge.search(queries, 4, requested))
    rows = knowledge.search(queries, 4, requested)
    assert torch.equal(again.value(SCHEDULE, rows, 5), knowledge.value(SCHEDULE, rows, 5))


def test_keys_are_averaged_over_draws_and_the_trajectory_keeps_its_noise():
    x, y = digits(30)

    def keys(**query):
        return build_knowledge_base(PIXELS, x, y, time=30, by_class=False, seed=4, query=QuerySettings(**query))

    one, many, clean = keys(), keys(key_draws=3), keys(clean_keys=True)
    assert torch.equal(one.noise, many.noise) and torch.equal(one.noise, clean.noise)
    generated = generator(4 + module.NOISE_APART)
    draws = [PIXELS.noised(x, 30, generated)[0] for _ in range(3)]
    torch.testing.assert_close(draws[0], one.keys)
    torch.testing.assert_close(many.keys, F.normalize(sum(draws), dim=1))
    torch.testing.assert_close(clean.keys, Pixels()(x))


def test_a_conditional_key_is_asked_for_its_class():
    requested = []

    def denoise(x, t, y):
        requested.append(y)
        return torch.zeros_like(x)

    x, y = digits(30)
    seen = FeatureMap(OneStep(SCHEDULE, denoise, conditional=True), Pixels())
    build_knowledge_base(seen, x, y, time=30, by_class=False, seed=4)
    assert torch.equal(requested[0], y)


def test_without_keys_trajectories_are_taken_evenly_from_the_class():
    images, labels = torch.zeros(40, 1, 2, 2), torch.arange(40) % 4
    knowledge = base_without_keys(images, labels, by_class=True, seed=3)
    assert not knowledge.has_keys and knowledge.time == 0 and len(knowledge.noise.flatten(1).unique(dim=0)) == 40
    wanted = torch.tensor([2] * 3000 + [NO_CLASS] * 3000 + [9] * 10)
    rows = knowledge.taken(2, wanted, generator())
    counts = torch.bincount(rows[:3000].flatten(), minlength=40)
    assert (labels[rows[:3000]] == 2).all() and (counts[labels == 2] - 600).abs().max() < 5 * 600**0.5
    assert len(rows[3000:].unique()) == 40, "no class, or one that has no image: from all"
    assert torch.equal(rows, knowledge.taken(2, wanted, generator())), "the generator decides"
    one = base_without_keys(images, labels, by_class=False, seed=3)
    assert len(one.taken(1, wanted, generator()).unique()) == 40, "a base that is not split by class takes from all"


def test_a_base_that_loses_its_keys_keeps_its_trajectories():
    knowledge = base()
    bare = knowledge.without_keys()
    assert torch.equal(bare.images, knowledge.images) and torch.equal(bare.noise, knowledge.noise)
    assert not bare.has_keys and bare.time == 0 and knowledge.has_keys


def test_a_base_without_keys_comes_back_from_disk(tmp_path):
    serialization.save_base(tmp_path, base().without_keys())
    again = serialization.load_base(tmp_path, torch.device("cpu"))
    wanted = torch.arange(30) % 6
    assert not again.has_keys
    assert torch.equal(again.taken(2, wanted, generator()), base().without_keys().taken(2, wanted, generator()))


def test_a_base_of_an_earlier_version_has_no_time(tmp_path):
    serialization.save_base(tmp_path, base())
    facts = json.loads((tmp_path / "facts.json").read_text())
    (tmp_path / "facts.json").write_text(json.dumps({"by_class": facts["by_class"]}))
    assert serialization.load_base(tmp_path, torch.device("cpu")).time == 0


def test_small_batches_of_queries_use_blas():
    """FAISS' own default waits for far more queries; see the constant."""
    module.searching()
    threads, rest = divmod(faiss.cvar.distance_compute_blas_threshold, BLAS_QUERIES_PER_THREAD)
    assert not rest and 1 <= threads <= os.cpu_count(), "other tests change the number of threads after the import"


# Beyond so many keys


def clustered(count, classes=20, spread=0.4, seed=0):
    """Unit vectors about a centre for each class."""
    labels = torch.arange(count) % classes
    return F.normalize(unit(classes, 16, seed=50)[labels] + spread * unit(count, 16, seed=seed), dim=1), labels


def large(count=3000, by_class=False):
    keys, labels = clustered(count)
    return KnowledgeBase(keys, torch.zeros(count, 1, 4, 4), torch.zeros(count, 1, 4, 4), labels, by_class, time=3)


def test_search_is_exact_up_to_a_million_keys():
    assert module.EXACT_KEYS == 1_000_000
    assert all(isinstance(index, faiss.IndexFlat) for index in large(by_class=True).indices.values())


def test_beyond_that_an_inverted_file_finds_nearly_all_nearest_keys(monkeypatch):
    monkeypatch.setattr(module, "EXACT_KEYS", 2999)
    knowledge, (queries, _) = large(), clustered(500, seed=9)
    (index,) = knowledge.indices.values()
    assert isinstance(index, faiss.IndexIVF) and 1 < index.nprobe < index.nlist
    result = knowledge.search(queries, 1)[:, 0]
    exact = (queries.double() @ knowledge.keys.double().T).argmax(1)
    share = float((result == exact).float().mean())
    assert 0.8 < share < 1, "it is approximate"
    assert torch.equal(knowledge.keys[result].norm(dim=1).round(), torch.ones(500)), "what it finds are keys"


def test_only_a_class_with_too_many_keys_is_searched_approximately(monkeypatch):
    monkeypatch.setattr(module, "EXACT_KEYS", 150)
    kinds = {label: type(index) for label, index in large(by_class=True).indices.items()}
    assert kinds.pop(-1) is faiss.IndexIVFFlat and set(kinds.values()) == {faiss.IndexFlatIP}


def test_an_inverted_file_of_a_few_keys_still_answers(monkeypatch):
    monkeypatch.setattr(module, "EXACT_KEYS", 0)
    knowledge = base(count=5)
    assert set(knowledge.search(unit(4, seed=5), 7).flatten().tolist()) <= set(range(5))


def test_recall_is_measured_against_brute_force_where_search_is_approximate(monkeypatch):
    images = torch.rand(400, 1, 4, 4, generator=generator(6)) * 2 - 1
    requested = (PIXELS, images)
    assert search_recall(large(), *requested, seed=2) == 1.0
    monkeypatch.setattr(module, "EXACT_KEYS", 2999)
    knowledge = large()
    shown = images * math.sqrt(level(3)) + math.sqrt(1 - level(3)) * torch.randn(images.shape, generator=generator(2))
    queries = F.normalize((shown / math.sqrt(level(3))).clamp(-1, 1).flatten(1), dim=1)
    near = (queries.double() @ knowledge.keys.double().T).argmax(1)
    expected = float((knowledge.search(queries, 1)[:, 0] == near).float().mean())
    assert search_recall(knowledge, *requested, seed=2) == pytest.approx(expected, abs=0.01)
    assert 0.2 < expected < 1, "queries far from every cluster are missed most"


def test_without_a_library_every_search_is_exact(monkeypatch):
    monkeypatch.setattr(module, "searching", lambda: None)
    monkeypatch.setattr(module, "EXACT_KEYS", 10)
    knowledge, x = base(), torch.zeros(4, 1, 3, 3)
    assert all(isinstance(index, MatrixIndex) for index in knowledge.indices.values())
    assert search_recall(knowledge, PIXELS, x, seed=0) == 1.0
