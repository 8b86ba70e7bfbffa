"""What a paid judge makes of drawn images, and what a plan refuses to have judged."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import config
from sfumato.backbone import whitening
from sfumato.config import Schedule
from sfumato.diffusion.schedule import make_schedule, predicted_image
from sfumato.drawing import Steered, steered
from sfumato.errors import BadInput
from sfumato.images import ImageSet
from sfumato.judge import LinearJudge, agreeing, disagrees, relabelled, separation, sorted_out, surest, weighed
from sfumato.latents import PIXELS
from sfumato.methods.plan import STAGE_JUDGE, Facts
from sfumato.networks.backbone import BackboneNetwork
from sfumato.preflight import plan_for
from sfumato.privacy.accounting import accountant
from sfumato.settings import resolve

FACTS = Facts(records=1400, classes=("a", "b", "c"), public_classes=5, shape=(1, 8, 8))


def images(*labels):
    return ImageSet(np.zeros((len(labels), 1, 8, 8), np.uint8), np.array(labels, np.int64), ("a", "b", "c"))


def reported(*rows):
    return torch.tensor(rows).log()


JUDGED = reported(
    [0.9, 0.05, 0.05], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.5, 0.4, 0.1], [0.3, 0.3, 0.4]
)
DRAWN = images(0, 0, 0, 1, 1, 2)


def test_relabelled_images_have_the_judges_class_and_their_own_pixels():
    result = relabelled(DRAWN, JUDGED)
    assert result.labels.tolist() == [0, 0, 1, 1, 0, 2] and result.pixels is DRAWN.pixels
    assert agreeing(DRAWN, JUDGED).tolist() == [0, 1, 3, 5]


def drawn_and_judged(shown, least, count=6000, seed=0):
    """Images whose class is that drawn for with probability `shown`, and which the judge reads rightly with one from `least` to 1, and says so."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, count)
    drawn = np.where(rng.random(count) < shown, truth, (truth + rng.integers(1, 3, count)) % 3)
    sure = rng.uniform(least, 0.999, count)
    read = np.where(rng.random(count) < sure, truth, (truth + rng.integers(1, 3, count)) % 3)
    stated = np.repeat((1 - sure)[:, None] / 2, 3, 1)
    stated[np.arange(count), read] = sure
    return truth, images(*drawn), torch.from_numpy(stated).log()


@pytest.mark.parametrize(("shown", "least"), [(0.95, 0.34), (0.6, 0.9), (0.8, 0.6)])
@pytest.mark.parametrize("too_sure", [1.0, 3.0])
def test_whoever_is_right_more_often_is_heard(shown, least, too_sure):
    """Weighed labels are as good as the better source, whichever it is, also where the judge overstates how sure it is."""
    truth, drawn, stated = drawn_and_judged(shown, least)
    result = weighed(drawn, (stated * too_sure).log_softmax(1))
    right = [(labels == truth).mean() for labels in (drawn.labels, stated.argmax(1).numpy(), result.labels)]
    assert right[2] >= max(right[:2]) - 0.005
    assert result.pixels is drawn.pixels


@pytest.mark.parametrize(("shown", "least"), [(0.95, 0.0), (0.5, 0.3)])
def test_a_judge_that_differs_on_most_images_changes_no_label(shown, least):
    """It is sure of itself whatever it says, and nothing tells which of the two is wrong."""
    _, drawn, stated = drawn_and_judged(shown, least)
    one_answer = torch.zeros(len(drawn), 3).index_fill_(1, torch.tensor([1]), 9.0).log_softmax(1)
    for wrong in (stated.roll(1, 1), one_answer, torch.randn(len(drawn), 3).mul(9).log_softmax(1)):
        assert weighed(drawn, wrong).labels.tolist() == drawn.labels.tolist()


def test_the_surest_of_a_class_are_kept_and_agreement_comes_first():
    assert surest(DRAWN, JUDGED, [2, 1, 1]).tolist() == [0, 1, 3, 5]
    assert surest(DRAWN, JUDGED, [1, 2, 0]).tolist() == [0, 3, 4], "one that is not agreed with fills up"


def test_there_are_as_many_as_asked_for_though_a_class_is_short():
    result = surest(DRAWN, JUDGED, [1, 1, 3])
    assert len(set(result.tolist())) == 5 and {0, 3, 5} <= set(result.tolist())


ANY = 1 / 3
"""Share of three classes that are right by chance."""


@pytest.mark.parametrize(
    ("shown", "count", "expected"), [(ANY, 3000, True), (0.5, 3000, False), (0.9, 3000, False), (ANY, 60, False)]
)
def test_classes_drawn_for_mean_nothing_where_a_judge_clearly_sees_none_of_them(shown, count, expected):
    """Few images show nothing clearly."""
    truth, drawn, stated = drawn_and_judged(shown, 0.9, count)
    assert disagrees(drawn, stated) is expected
    third = images(*np.where(truth == 2, 0, truth))
    assert not disagrees(third, stated), "a class of which none were drawn is not found either"


@pytest.mark.parametrize(("apart", "expected"), [(0.0, 0.0), (6.0, 1.0)])
def test_classes_are_apart_where_what_tells_them_so_was_not_learnt_by_heart(apart, expected):
    labels = np.repeat(np.arange(4), [200, 100, 50, 10])
    features = torch.randn(360, 30, generator=torch.Generator().manual_seed(0))
    shown = features + apart * torch.nn.functional.one_hot(torch.from_numpy(labels), 30)
    assert separation(shown, labels) == pytest.approx(expected, abs=0.14)


@pytest.mark.parametrize(("noise", "same"), [(0.1, True), (0.1, False), (0.6, True), (math.inf, True)])
def test_a_filter_goes_by_its_own_classes_where_it_learnt_them_and_the_drawing_shows_none(noise, same):
    """Where drawn classes differ in what it sees, it may misread them."""
    truth, drawn, stated = drawn_and_judged(ANY, 0.9)
    judge = SimpleNamespace(of_set=lambda *_: stated, separation=lambda *_: 0.05 if same else 0.5, noise=noise)
    verdict = sorted_out(judge, "filter", drawn, [900, 800, 700], torch.device("cpu"))
    own = verdict.images.labels
    assert np.bincount(own).tolist() == [900, 800, 700] and abs(verdict.agreed - ANY) < 0.02
    as_drawn = (own == verdict.drawn_for).mean()
    assert as_drawn == pytest.approx(ANY, abs=0.05) if noise < 0.5 and same else as_drawn == 1
    related = sorted_out(judge, "filter", images(*truth), [900, 800, 700], torch.device("cpu"))
    assert (related.images.labels == related.drawn_for).all()
    of_one = sorted_out(judge, "filter", drawn, [0, 50, 0], torch.device("cpu"), True).images.labels
    assert of_one.tolist() == [1] * 50, "whoever knows that the run did so need not look"


@pytest.fixture(scope="module")
def judge():
    torch.manual_seed(0)
    network = BackboneNetwork((1, 8, 8), 5, width=8).eval().requires_grad_(False)
    backbone = whitening(network, config.BackboneSettings(width=8), torch.rand(300, 1, 8, 8) * 2 - 1, 5)
    return LinearJudge(backbone, torch.randn(3, 17, dtype=torch.float64), 20.0)


def test_probabilities_sum_to_1_and_a_set_is_read_as_its_images_are(judge):
    pixels = np.random.default_rng(0).integers(0, 255, (7, 1, 8, 8), dtype=np.uint8)
    result = judge.of_set(ImageSet(pixels, np.zeros(7, np.int64), ("a", "b", "c")), torch.device("cpu"))
    assert result.shape == (7, 3) and torch.allclose(result.exp().sum(1), torch.ones(7), atol=1e-5)


def test_a_judge_sees_dark_and_bright_images_apart_and_not_noise(judge):
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(3), 200)
    noise = rng.integers(0, 60, (600, 1, 8, 8), dtype=np.uint8)
    shades = noise + (90 * labels[:, None, None, None]).astype(np.uint8)
    seen = [
        judge.separation(ImageSet(pixels, labels, ("a", "b", "c")), torch.device("cpu")) for pixels in (noise, shades)
    ]
    assert abs(seen[0]) < 0.2 and seen[1] > 0.5


class Guess(nn.Module):
    """Predicts noise that is a tenth of what it sees."""

    def forward(self, x, t, y):
        return x / 10


@pytest.fixture
def pulled(judge):
    schedule = make_schedule(Schedule(timesteps=50))
    parts = SimpleNamespace(schedule=schedule, codec=PIXELS, alignment=None)
    return schedule, Steered(Guess(), judge, parts, 0.05)


def test_a_pulled_image_is_likelier_of_its_class_also_in_inference_mode(judge, pulled):
    schedule, steered_guess = pulled
    with torch.inference_mode():
        x, t, y = torch.randn(20, 1, 8, 8) / 4, torch.full((20,), 20), torch.arange(20) % 3
        before = predicted_image(schedule, x, t, Guess()(x, t, y))
        after = predicted_image(schedule, x, t, steered_guess(x, t, y))
    own = [judge.log_probabilities(result).gather(1, y[:, None]).mean() for result in (before, after)]
    assert own[1] > own[0] + 0.01


def test_nothing_moves_where_no_class_is_asked_for(pulled):
    x, t = torch.randn(4, 1, 8, 8), torch.full((4,), 20)
    assert torch.equal(pulled[1](x, t, torch.full((4,), -1)), Guess()(x, t, None))
    some = pulled[1](x, t, torch.tensor([-1, 0, -1, 1]))
    assert torch.equal(some[0], Guess()(x, t, None)[0]) and not torch.equal(some[1], Guess()(x, t, None)[1])


def test_only_a_denoiser_of_the_private_classes_is_steered(judge):
    with pytest.raises(ValueError, match="does not ask for"):

        @dataclasses.dataclass(frozen=True)
        class Lacking:
            tuned: None = None

        steered(Lacking(), judge, 1.0)


# Plans


def planned(method="dp-sgd", *changes, facts=FACTS):
    return plan_for(resolve(method, "digits", ["privacy.delta=1e-4", *changes]), facts)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_judge_costs_its_share_by_itself_and_stands_in_the_one_certificate(share):
    plan = planned("dp-sgd", "judge.use=relabel", f"judge.share={share}")
    alone = accountant.epsilon([plan.event(STAGE_JUDGE)], 1e-4)
    assert share * 10 * 0.998 < alone <= share * 10
    assert plan.event(STAGE_JUDGE).count == 60 and plan.judge.use == "relabel"
    assert plan.certificate.epsilon <= 10 and plan.noise_multiplier > planned().noise_multiplier


def test_without_a_judge_nothing_is_planned_for_one():
    plan = planned()
    assert plan.judge is None and not plan.events(STAGE_JUDGE)


@pytest.mark.parametrize(
    ("method", "changes", "facts", "words"),
    [
        ("dp-sgd", ["judge.use=relabel"], {"classes": ("a",)}, "private images are of 1 class"),
        ("dp-sgd", ["judge.use=relabel", "judge.directions=513"], {}, "more than the 512 features"),
        ("dppm", ["judge.use=filter", "method.mechanism=dp_sgd", "fine_tuning.trainable=[film,time,rest]"], {}, "labels of their own.*relabel"),
        ("empirical-denoiser", ["judge.use=filter"], {}, "pays for each image.*relabel"),
        ("empirical-denoiser", ["judge.use=guide"], {}, "which alone can be guided"),
    ],
)  # fmt: skip
def test_a_judge_that_could_not_work_is_refused_in_one_line(method, changes, facts, words):
    with pytest.raises(BadInput, match=words) as caught:
        planned(method, *changes, facts=FACTS.model_copy(update=facts))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change", ["judge.keep=0.01", "judge.keep=1", "judge.share=1", "judge.use=jury", "judge.steps=1"]
)
def test_settings_out_of_range_are_refused(change):
    with pytest.raises(BadInput, match="judge"):
        resolve("dp-sgd", "digits", [change])
