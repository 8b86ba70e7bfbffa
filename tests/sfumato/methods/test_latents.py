"""Every method in latents: private pixels end inside the mechanism, denoisers see latents alone, what leaves is pixels."""

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import sources
from sfumato.diffusion.schedule import signal_levels
from sfumato.drawing import draw_images, draw_public
from sfumato.images import to_unit
from sfumato.methods import METHODS
from sfumato.methods.algorithm import design
from sfumato.named_settings import DEFAULT_METHOD
from sfumato.preflight import private_set
from sfumato.privacy import door
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.mechanisms import noised_records
from tests.spends import KEYS

LATENTS = ("latent.kind=kl", "latent.width=8", "latent.steps=15", "latent.batch=32")
SHAPE = (3, 4, 4)
NETWORKS = {
    "mlp": (),
    "unet": ("network.kind=unet", "network.width=8", "network.multipliers=[1,2]", "network.attention=[4,2]"),
    "dit": ("network.kind=dit", "network.width=8", "network.heads=2", "network.prediction=velocity"),
}
CPU = torch.device("cpu")
TUNED = [name for name, method in METHODS.items() if method.corrupt]
every_tuned = pytest.mark.parametrize("method", TUNED)
each_network_once = pytest.mark.parametrize(
    ("method", "network"),
    [
        *((method, "mlp") for method in TUNED),
        (DEFAULT_METHOD, "unet"),
        *((method, "dit") for method in (DEFAULT_METHOD, "dp-promise")),
    ],
)


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


class Watched(torch.nn.Module):
    """A network that remembers the shapes that it was asked about."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.shapes = inner, set()

    @property
    def condition(self):
        return self.inner.condition

    def forward(self, x, t, y):
        self.shapes.add(tuple(x.shape[1:]))
        return self.inner(x, t, y)

    def class_rows(self):
        return self.inner.class_rows()

    def exchange_rows(self, rows):
        self.inner.exchange_rows(rows)

    def group_of(self, name):
        return self.inner.group_of(name)


@each_network_once
def test_a_method_runs_in_latents_from_the_door_to_the_picture(method, network, world, access_to, ledger):
    """The same plan and the same entries as in pixels; pixels again at the end."""
    tiny = world(method, *LATENTS, *NETWORKS[network])
    assert tiny.parts.shape == SHAPE and tiny.facts.shape == (1, 8, 8)
    parts, entries = tiny.pay(access_to(ledger))
    assert [event for _, events in ledger.spends("digits") for event in events] == [s.event for s in tiny.plan.spends]
    assert tiny.plan.spends == world(method).plan.spends, "latents cost what pixels cost"
    assert set(entries.values()) == {"DP" if tiny.plan.certificate else "INTERNAL"}
    public, tuned = Watched(parts.public), Watched(parts.tuned)
    watched = replace(parts, public=public, tuned=tuned)
    own = getattr(tiny.method, "labels", None)
    for draw, labels in ((tiny.method.draw, own), (draw_public, None)):
        actual = draw_images(draw, tiny.settings, watched, tiny.facts, 12, CPU, labels=labels)
        assert actual.pixels.shape == (12, 1, 8, 8) and actual.pixels.dtype == np.uint8
        assert actual.pixels.std() > 0
    built = design(tiny.method, tiny.settings, SHAPE, tiny.facts)
    assert public.shapes == {SHAPE} and tuned.shapes == {built.shape}


def test_members_and_their_priced_drawing_work_on_latents(world, access_to, ledger):
    tiny = world("dp-ensemble", *LATENTS)
    parts, entries = tiny.pay(access_to(ledger))
    assert set(entries.values()) == {"DP"} and tiny.plan.spends == world("dp-ensemble").plan.spends
    watched = replace(parts, public=Watched(parts.public), members=tuple(map(Watched, parts.members)))
    actual = tiny.drawing(watched)(torch.empty(0), torch.empty(0), torch.Generator().manual_seed(0))
    assert actual.pixels.shape == (20, 1, 8, 8) and actual.pixels.dtype == np.uint8 and actual.pixels.std() > 0
    assert all(model.shapes == {SHAPE} for model in (watched.public, *watched.members))


@every_tuned
def test_nothing_but_the_mechanism_sees_private_pixels(method, world, access_to, ledger, monkeypatch):
    """What a method's objective is given are the latents of the records behind the door, record by record."""
    tiny, seen = world(method, *LATENTS), []
    if not tiny.plan.fine_tuning:
        pytest.skip("the plan has no fine-tuning")
    real = tiny.method.corrupt

    def spying(settings, parts):
        examples = real(settings, parts)

        def spy(x, y, generator):
            seen.append((x.clone(), y.clone()))
            return examples(x, y, generator)

        return spy

    monkeypatch.setattr(sys.modules[tiny.method.module], "ALGORITHM", replace(tiny.method, corrupt=spying))
    tiny.pay(access_to(ledger))
    records = door.read(access_to(ledger)("fine_tuning", tiny).private, "train")
    latents = tiny.parts.codec.encode(to_unit(records.pixels))
    assert sum(len(x) for x, _ in seen) > 10
    for x, y in seen:
        assert x.shape[1:] == SHAPE
        distance, nearest = (x[:, None] - latents[None]).flatten(2).norm(dim=2).min(1)
        assert distance.max() < 1e-4 and torch.equal(torch.as_tensor(records.labels)[nearest], y)


@every_tuned
def test_votes_compare_pixels(method, world):
    """A ballot takes images as the door gives them, and finds a public image by its reconstruction."""
    tiny = world(method, *LATENTS)
    if not tiny.plan.votes:
        pytest.skip("this method takes no votes")
    base = tiny.parts.base
    chosen = tiny.method.ballot(tiny.parts)(tiny.parts.codec.decode(base.images[:30]), base.labels[:30])
    assert base.images.shape[1:] == SHAPE and (chosen == base.labels[:30]).float().mean() > 0.9


@every_tuned
def test_a_records_examples_depend_on_that_record_alone(method, world):
    tiny = world(method, *LATENTS)
    if not tiny.plan.fine_tuning:
        pytest.skip("the plan has no fine-tuning")
    parts = replace(tiny.parts, winners=torch.arange(10)) if tiny.plan.votes else tiny.parts
    corrupt = tiny.method.corrupt(tiny.settings, parts)
    actual = sources.load("digits", sources.Reading(part="train")).subset(slice(12))
    y, x = torch.as_tensor(actual.labels), to_unit(actual.pixels)
    other = x.clone()
    other[5] = -x[5]
    one, two = (corrupt(parts.codec.encode(part), y, torch.Generator().manual_seed(1)) for part in (x, other))
    others = torch.arange(12) != 5
    assert one.x_t.shape[2:] == SHAPE
    torch.testing.assert_close(one.x_t[others], two.x_t[others], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(one.x_t[5], two.x_t[5], atol=1e-2)


ONCE = ("method.phase_one=noised_once", "privacy.relation=replace_one", "schedule.timesteps=1000")


@pytest.mark.parametrize("latents", [(), LATENTS], ids=["pixels", "latents"])
def test_copies_noised_once_are_noised_to_s_whatever_they_are_copies_of(latents, world, ledger):
    """The price is relative to the longest record, the noise on each value is that of time S."""
    tiny = world("dp-promise", *ONCE, *latents)
    event, codec = tiny.plan.event("phase_one"), tiny.parts.codec
    level = float(signal_levels(tiny.settings.schedule)[tiny.plan.phase_one.boundary])
    longest = codec.largest_norm(tiny.facts.shape)
    assert event.noise_multiplier * longest == pytest.approx(((1 - level) / level) ** 0.5, rel=1e-9)
    requested = {"run": "run-1", "stage": "phase_one", "purpose": "a test", "code_version": "0"}
    private = private_set(tiny.settings)
    to_door = door.Access(ledger=ledger, private=private, relation="replace_one", delta=1e-5, **requested)
    faint = event.model_copy(update={"noise_multiplier": 1e-9})
    copies = noised_records(to_door, faint, codec=codec).result
    assert copies.shape[1:] == tiny.parts.shape and float(copies.flatten(1).norm(dim=1).max()) <= longest * (1 + 1e-6)
    clean = codec.encode(to_unit(door.read(private, "train").pixels))
    assert float(torch.cdist(copies.flatten(1), clean.flatten(1)).min(1).values.max()) < 0.05
