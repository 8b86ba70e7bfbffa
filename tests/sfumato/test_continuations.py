"""Continuations of one noised image: what they share, in which order they come, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato.continuations import continued
from sfumato.drawing import draw_set
from sfumato.errors import BadInput
from sfumato.images import to_pixels
from sfumato.methods import rapid
from sfumato.methods.plan import Certificate
from sfumato.released import ReleasedModel
from sfumato.settings import resolve
from tests.sfumato.methods.test_rapid import SHAPE, changed, generator, level, make_parts, nearest

CERTIFICATE = Certificate(
    epsilon=1.0, delta=1e-5, relation="add_remove", accountant="test", unit="one image", images="any"
)
NAMES = tuple("abcd")


class Classes(torch.nn.Module):
    """A denoiser whose prediction depends on the class."""

    def forward(self, x, t, y):
        return 0.1 * x + 0.3 * y.clamp(min=0).view(-1, 1, 1, 1)


def make_model(*changes, **parts):
    made = make_parts(tuned=Classes(), **parts)
    facts = made.facts.model_copy(update={"classes": NAMES, "shape": SHAPE})
    settings = changed("generation.guidance=0", *changes)
    return ReleasedModel(CERTIFICATE, settings, replace(made, facts=facts), None, (), torch.device("cpu"))


def test_all_that_goes_on_from_one_noised_image_has_its_neighbour_and_only_the_class_differs():
    model = make_model("generation.eta=0")
    shown = continued(model, 12, 4, seed=3)
    assert shown.noised.shape == (3, *SHAPE) and len(shown.images) == 12 and shown.images.classes == NAMES
    assert shown.images.labels.tolist() == [0, 1, 2, 3, 1, 2, 3, 0, 2, 3, 0, 1], "its own class, then those after it"
    latents = torch.stack([x for x, t, y in model.parts.public.calls if set(t.tolist()) == {15}][0].split(4))
    assert (latents == latents[:, :1]).all(), "one noised image each"
    settings, parts = model.settings, model.parts
    first = torch.tensor([0, 1, 2])
    x = rapid.query(settings, parts, first, generator(3))
    clean = ((x - (1 - level(15)) ** 0.5 * 0.1 * x) / level(15) ** 0.5).clamp(-1, 1)
    rows = nearest(parts, clean)[:, 0]
    start = level(4) ** 0.5 * parts.base.images[rows] + (1 - level(4)) ** 0.5 * parts.base.noise[rows]
    wanted = torch.from_numpy(shown.images.labels)
    walked = rapid.walked_on(settings, parts, start.repeat_interleave(4, 0), wanted, generator())
    assert np.array_equal(shown.images.pixels, to_pixels(walked)) and np.array_equal(shown.noised, to_pixels(x))


def test_continuations_of_one_class_differ_by_the_noise_of_the_sampler():
    shown = continued(make_model("generation.late_steps=4"), 6, 3, classes="b", seed=1)
    assert set(shown.images.labels.tolist()) == {1}
    assert len({one.tobytes() for one in shown.images.pixels[:3]}) == 3
    again = continued(make_model("generation.late_steps=4"), 6, 3, classes="b", seed=1)
    assert np.array_equal(shown.images.pixels, again.images.pixels)
    assert not np.array_equal(
        shown.images.pixels, continued(make_model("generation.late_steps=4"), 6, 3, classes="b", seed=2).images.pixels
    )


def test_the_two_parts_of_a_drawing_are_the_drawing():
    model, y = make_model(), torch.tensor([0, 1, 2, 3])
    source = generator(5)
    x = rapid.resume(model.settings, model.parts, rapid.query(model.settings, model.parts, y, source), y, source)
    torch.testing.assert_close(x, rapid.draw(model.settings, model.parts, y, generator(5)))
    settings = model.settings.model_copy(update={"seed": 5})
    assert np.array_equal(draw_set(settings, model.parts, 4, model.device).pixels, to_pixels(x))


def test_the_picture_has_a_row_for_each_noised_image():
    shown = continued(make_model(), 8, 4, seed=1)
    picture = shown.picture()
    across, down = picture.size
    assert across > 4 * down / 2 and np.asarray(picture).std() > 0


@pytest.mark.parametrize(
    ("changes", "count", "each", "classes", "words"),
    [
        ((), 7, 3, (), "7 images, 3 from each.*such as 6 or 9"),
        ((), 4, 1, (), "1 continuations.*give 2"),
        ((), 0, 2, (), "0 images.*such as 2$"),
        (("generation.eta=0",), 6, 3, ("a", "b"), "draws no noise.*at most 2"),
        (('generation.solver="pndm"',), 10, 5, (), "draws no noise.*at most 4"),
        ((), 4, 2, ("z",), "'z'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(changes, count, each, classes, words):
    with pytest.raises(BadInput, match=words) as refusal:
        continued(make_model(*changes), count, each, classes=classes, seed=1)
    assert "\n" not in str(refusal.value)


def test_a_method_without_a_noised_image_that_decides_is_refused():
    model = make_model()
    with pytest.raises(BadInput, match=r"'dp-sgd' does not retrieve by a noised image.*rapid"):
        continued(replace(model, settings=resolve("dp-sgd")), 4, 2)
    base = model.parts.base.without_keys()
    with pytest.raises(BadInput, match="trajectories at random"):
        continued(replace(model, parts=replace(model.parts, base=base)), 4, 2)
