"""Drawing: classes spread evenly, in pieces of bounded size, repeatable by the seed, public and private kept apart."""

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import drawing
from sfumato.config import Network
from sfumato.diffusion.schedule import make_schedule
from sfumato.drawing import draw_images, draw_public, private_drawing, some_of_each
from sfumato.images import Drawn, ImageSet
from sfumato.methods.parts import Parts
from sfumato.methods.plan import Facts
from sfumato.networks.build import build
from sfumato.settings import resolve
from tests.seeded import seeded_source

SHAPE = (1, 4, 4)
SETTINGS = resolve("dp-sgd", changes=["schedule.timesteps=20", "generation.steps=4", "seed=3"])
CPU = torch.device("cpu")


def parts(public=None, tuned=None):
    public = public or build(Network(kind="mlp", width=8, blocks=1, condition=4), SHAPE, 3)
    return Parts(schedule=make_schedule(SETTINGS.schedule), shape=SHAPE, facts=facts(), public=public, tuned=tuned)


def facts(classes="abcd"):
    return Facts(records=10, classes=tuple(classes), public_classes=3, shape=SHAPE)


def shaded(settings, parts, y, generator):
    """Images whose first pixel tells the class and whose other pixels are noise."""
    x = torch.rand(len(y), *parts.shape, generator=generator) * 2 - 1
    x[:, 0, 0, 0] = y / 10
    return x


@pytest.mark.parametrize(
    ("count", "each"), [(8, [2, 2, 2, 2]), (10, [3, 2, 3, 2]), (2, [1, 0, 1, 0]), (1, [1, 0, 0, 0])]
)
def test_classes_come_in_order_and_as_evenly_as_the_count_allows(count, each, monkeypatch):
    monkeypatch.setattr(drawing, "CHUNK", 3)
    steps = []
    result = draw_images(shaded, SETTINGS, parts(), facts(), count, CPU, lambda *step: steps.append(step))
    assert np.bincount(result.labels, minlength=4).tolist() == each
    assert result.labels.tolist() == sorted(result.labels) and result.classes == tuple("abcd")
    assert result.pixels.shape == (count, *SHAPE)
    reported = np.round((result.labels / 10 + 1) * 127.5)
    assert np.array_equal(result.pixels[:, 0, 0, 0], reported), "each image stands beside the class it was drawn for"
    assert steps[-1] == (count, count) and [done for done, _ in steps] == sorted({*range(3, count, 3), count})


def test_the_seed_repeats_the_images_and_another_gives_others(monkeypatch):
    monkeypatch.setattr(drawing, "CHUNK", 4)
    one, two = (draw_images(shaded, SETTINGS, parts(), facts(), 12, CPU) for _ in range(2))
    other = draw_images(shaded, SETTINGS.model_copy(update={"seed": 4}), parts(), facts(), 12, CPU)
    assert np.array_equal(one.pixels, two.pixels) and not np.array_equal(one.pixels, other.pixels)
    assert len(np.unique(one.pixels, axis=0)) == 12, "no piece repeats the noise of another"


def test_points_of_a_priced_drawing_stand_behind_its_images_in_their_order(monkeypatch):
    monkeypatch.setattr(drawing, "CHUNK", 3)

    def ends(settings, parts, private, y, source):
        return (y / 10).view(-1, 1, 1, 1).expand(-1, *SHAPE) + 5.0

    def finish(settings, parts, points, source):
        return points - 5.0

    nothing = torch.zeros(0, *SHAPE), torch.zeros(0, dtype=torch.long)
    images = private_drawing(ends, SETTINGS, parts(), facts(), 8, CPU, finish=finish)(*nothing, seeded_source(0))
    assert isinstance(images, Drawn) and images.points.dtype == np.float32
    assert np.allclose(images.points[:, 0, 0, 0] - 5, images.labels / 10) and images.points.shape == (8, *SHAPE)
    assert np.array_equal(images.pixels[:, 0, 0, 0], np.round((images.labels / 10 + 1) * 127.5))
    plain = private_drawing(lambda *given: ends(*given) - 5.0, SETTINGS, parts(), facts(), 8, CPU)(
        *nothing, seeded_source(0)
    )
    assert not isinstance(plain, Drawn) and np.array_equal(plain.pixels, images.pixels)


def test_some_of_each_class_are_found_wherever_they_stand_and_missing_ones_are_black():
    labels = np.array([2, 0, 2, 1, 0, 2, 0])
    pixels = np.arange(1, 8, dtype=np.uint8).reshape(7, 1, 1, 1)
    result = some_of_each(ImageSet(pixels, labels, tuple("abcd")), 2)
    assert result[:, 0, 0, 0].tolist() == [2, 5, 4, 0, 1, 3, 0, 0]


def test_what_is_shown_of_a_class_is_spread_over_it():
    pixels = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1)
    result = some_of_each(ImageSet(pixels, np.zeros(10, np.int64), ("a",)), 3)
    assert result[:, 0, 0, 0].tolist() == [0, 3, 6]


def test_images_may_bring_labels_of_their_own(monkeypatch):
    """In the order in which they were drawn; a class that none of them has does not matter."""
    monkeypatch.setattr(drawing, "CHUNK", 3)

    def with_row(settings, parts, y, generator):
        x = shaded(settings, parts, y, generator)
        return torch.cat([x, torch.full_like(x[:, :, :1], 0.25)], 2)

    def read(settings, parts, u):
        assert (u[:, :, -1] == 0.25).all()
        return u[:, :, :-1], torch.arange(len(u)) % 2

    result = draw_images(with_row, SETTINGS, parts(), facts(), 8, CPU, labels=read)
    assert result.labels.tolist() == [0, 1, 0, 0, 1, 0, 0, 1] and result.classes == tuple("abcd")
    assert result.pixels.shape == (8, *SHAPE)
    assert np.array_equal(result.pixels, draw_images(shaded, SETTINGS, parts(), facts(), 8, CPU).pixels)


def test_the_public_picture_asks_public_classes_in_turn_and_no_tuned_model():
    requested = []

    class Spy(nn.Module):
        def class_rows(self):
            return torch.zeros(3, 4)

        def exchange_rows(self, rows):
            pytest.fail("the public model keeps its classes")

        def group_of(self, name):
            return "rest"

        def forward(self, x, t, y):
            requested.append((t, y))
            return x

    def forbidden(*_):
        pytest.fail("the public picture was drawn with the tuned model")

    y = torch.zeros(7, dtype=torch.long)
    x = draw_public(SETTINGS, parts(Spy(), forbidden), y, torch.Generator().manual_seed(0))
    assert x.shape == (7, *SHAPE) and x.abs().max() <= 1
    assert all(classes.tolist() == [0, 1, 2, 0, 1, 2, 0] for _, classes in requested)
    assert [int(t[0]) for t, _ in requested] == [20, 15, 10, 5]


class Noted(nn.Module):
    """A public model that says what it was asked."""

    def __init__(self, model):
        super().__init__()
        self.model, self.calls = model, []

    def forward(self, x, t, y):
        self.calls.append((int(t.max()), sorted(set(y.tolist()))))
        return self.model(x, t, y)


def test_what_was_drawn_is_refined_by_the_public_model_of_no_class_from_a_small_time():
    own = parts()
    public = Noted(own.public)
    refining = [f"generation.refine={share}" for share in (0.0, 0.05, 0.5)]
    result = []
    for change in refining:
        settings = resolve("dp-sgd", changes=["schedule.timesteps=20", "seed=3", "generation.refine_steps=4", change])
        result.append(draw_images(shaded, settings, parts(public), facts(), 40, CPU).pixels.astype(float))
        if change == refining[0]:
            assert public.calls == [], "nothing is refined unless someone wants it"
    times = [time for time, _ in public.calls]
    assert max(times) == 10 and all(classes == [-1] for _, classes in public.calls)
    plain, little, much = result
    assert 0 < np.abs(little - plain).mean() < np.abs(much - plain).mean()


def test_refining_takes_noise_away_from_what_the_public_model_knows():
    """A model of one known image brings a little noised copy back to it."""
    known = torch.zeros(SHAPE)
    schedule = make_schedule(SETTINGS.schedule)

    class Knows(nn.Module):
        def forward(self, x, t, y):
            signal, noise = schedule.signal(t), schedule.noise(t)
            return (x - signal * known) / noise

    settings = resolve("dp-sgd", changes=["schedule.timesteps=20", "generation.refine=0.2"])
    result = draw_images(shaded, settings, parts(Knows()), facts(), 8, CPU).pixels
    assert np.abs(result.astype(float) - 127.5).max() <= 1
