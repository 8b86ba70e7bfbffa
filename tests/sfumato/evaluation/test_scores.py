import json

import pydantic
import pytest
import torch
import torch.nn.functional as F

from sfumato.config import Evaluation
from sfumato.errors import BadInput
from sfumato.evaluation import extractors, intervals
from sfumato.evaluation.classifier import FEATURES, default_steps, features, predict
from sfumato.evaluation.extractors import FeatureReader, cnn_name
from sfumato.evaluation.fidelity import frechet_distance, kernel_distance, neighbours
from sfumato.evaluation.scores import Bench, Scores, ceiling, make_bench, packed, scores_of, unpacked
from sfumato.evaluation.two_samples import STEPS
from sfumato.evaluation.utility import ELEVEN, TEN, answers, training_steps

QUICK = Evaluation(features="cnn", resamples=20)


@pytest.fixture(scope="module")
def bench(digits, reader, eyes) -> Bench:
    return make_bench(digits.test, digits.test_labels, reader=reader, extractor=eyes, how=QUICK)


@pytest.fixture(scope="module")
def reference_scores(digits, bench) -> Scores:
    return scores_of(digits.train, digits.train_labels, bench)


def test_reference_is_what_real_images_score(reference_scores, digits, reader, public_model):
    scores, train, test = reference_scores, features(public_model, digits.train), features(public_model, digits.test)
    near = neighbours(test, train)
    assert scores.frechet == frechet_distance(test, train) and scores.kid == kernel_distance(test, train)[0]
    assert [scores.coverage, scores.recall, scores.precision, scores.density] == [rows.mean() for rows in near]
    read = predict(reader, digits.train).argmax(1)
    assert scores.readable == (read == digits.train_labels).double().mean()
    ((_, right, _),) = answers(("logistic",), *digits, how=QUICK)
    assert scores.logistic == right.double().mean() and scores.images == 1437
    assert scores.coverage > 0.95 and scores.readable > 0.99 and scores.cnn > 0.96 and scores.logistic > 0.94
    assert scores.inception_score > 3 and scores.feature_extractor == cnn_name("glyphs", 52)
    assert {scores.mlp, scores.paper_cnn, scores.resnet9, scores.eleven} == {None} and not scores.scikit


def test_every_number_that_is_shown_has_an_interval_around_it(reference_scores):
    named = set(reference_scores.numbers()) - {"images"}
    assert set(reference_scores.intervals) == named and len(named) == 16
    for name in named:
        low, high = reference_scores.intervals[name]
        assert low <= reference_scores.numbers()[name] <= high and low < high, name


def test_worse_images_score_worse_and_all_steps_are_counted(digits, bench, reference_scores):
    generator, heard = torch.Generator().manual_seed(0), []
    images = (digits.train[:300] + 0.8 * torch.randn(300, 1, 8, 8, generator=generator)).clamp(-1, 1)
    scores = scores_of(images, digits.train_labels[:300], bench, progress=lambda *step: heard.append(step))
    total = default_steps(300) + STEPS
    assert heard == [*((step, total) for step in range(len(heard) - 1)), (total, total)]
    assert len(heard) > default_steps(300), "telling apart comes last, and may end early"
    assert scores.frechet > reference_scores.frechet and scores.logistic < reference_scores.logistic
    assert scores.kid > reference_scores.kid and scores.inception_score < reference_scores.inception_score
    assert scores.precision < reference_scores.precision


@pytest.mark.usefixtures("quick_judges")
def test_a_set_of_the_test_images_is_at_no_distance(digits, bench):
    scores = scores_of(digits.test, digits.test_labels, bench)
    assert scores.readable > 0.96
    assert scores.frechet == pytest.approx(0, abs=1e-6) and scores.coverage == 1 and scores.images == 360


@pytest.mark.usefixtures("quick_judges")
@pytest.mark.parametrize("few", ["synthetic images", "real test images"])
def test_no_more_images_than_features_give_a_reason_and_no_frechet_distance(digits, reader, eyes, few):
    for count in (FEATURES, FEATURES + 1):
        synthetic, real = (count, 360) if few.startswith("synthetic") else (300, count)
        how = QUICK.model_copy(update={"resamples": 20})
        bench = make_bench(digits.test[:real], digits.test_labels[:real], reader=reader, extractor=eyes, how=how)
        scores = scores_of(digits.train[:synthetic], digits.train_labels[:synthetic], bench)
        if count > FEATURES:
            assert scores.frechet >= 0 and "frechet" in scores.intervals and scores.missing == {}
        else:
            assert scores.frechet is None and "frechet" not in scores.intervals | scores.numbers()
            assert scores.missing == {"frechet": f"64 {few} are too few for 64 features; it takes 65 or more of both"}
            assert Scores.model_validate_json(scores.model_dump_json()) == scores
        assert scores.kid is not None and scores.coverage <= 1


@pytest.mark.usefixtures("quick_judges")
def test_wide_features_have_a_distance_and_no_interval(digits, bench, monkeypatch):
    monkeypatch.setattr(intervals, "WIDEST", FEATURES - 1)
    scores = scores_of(digits.train[:100], digits.train_labels[:100], bench)
    assert scores.frechet > 0 and "frechet" not in scores.intervals and "kid" in scores.intervals


def test_all_classifiers_on_grey_images_of_8x8(digits, reader, eyes):
    how = Evaluation(features="cnn", classifiers="all", resamples=20, epochs=20, scikit_images=200)
    bench, heard = make_bench(digits.test, digits.test_labels, reader=reader, extractor=eyes, how=how), []
    task = (digits.train[:600], digits.train_labels[:600])
    scores = scores_of(*task, bench, progress=lambda *step: heard.append(step))
    assert heard[-1] == (training_steps(("cnn", "mlp"), 600, how) + STEPS,) * 2
    assert list(scores.scikit) == list(ELEVEN) and scores.scikit["logistic"] == scores.logistic
    assert scores.eleven == pytest.approx(sum(scores.scikit.values()) / 11)
    assert 0.6 < scores.eleven < scores.logistic and scores.mlp > 0.5
    assert set(scores.missing) == {"paper_cnn", "resnet9"} and scores.paper_cnn is scores.resnet9 is None
    assert {*TEN, "eleven", "mlp"} <= set(scores.intervals)
    low, high = scores.intervals["eleven"]
    assert low < scores.eleven < high


def test_scores_of_an_earlier_version_still_load(reference_scores):
    """They lack what came later, and say nothing of it."""
    later = (
        "two_sample_auc",
        "judge",
        "further_extractors",
        "frechet_latents",
        "frechet_backbone",
        "frechet_train",
        "dppm_cnn",
    )
    known = reference_scores.model_dump(mode="json")
    old = {
        name: value for name, value in known.items() if name not in later and not name.endswith(("_auc", "_balanced"))
    }
    assert len(known) - len(old) == len(later) + 12
    result = Scores.model_validate_json(json.dumps(old))
    assert result.two_sample_auc is result.cnn_auc is result.judge is None and result.cnn == reference_scores.cnn
    assert "two_sample_auc" not in result.numbers()


def test_real_images_are_the_floor_of_what_is_told_apart(reference_scores):
    low, high = reference_scores.intervals["two_sample_auc"]
    assert 0.4 < reference_scores.two_sample_auc < 0.6 and low < 0.5 < high + 0.05
    assert reference_scores.judge > 0.96 and reference_scores.cnn_auc > 0.99
    assert reference_scores.cnn_balanced == pytest.approx(reference_scores.cnn, abs=0.02)


@pytest.mark.usefixtures("quick_judges")
def test_published_distances_are_to_the_training_images(digits, reader, eyes):
    bench = make_bench(
        digits.test, digits.test_labels, reader=reader, extractor=eyes, how=QUICK, trained_on=digits.train
    )
    copies = scores_of(digits.train, digits.train_labels, bench)
    assert copies.frechet_train == pytest.approx(0, abs=1e-3) and copies.frechet > 0.1
    half = scores_of(digits.train[:500], digits.train_labels[:500], bench)
    read = [eyes.read(images)[0] for images in (digits.train, digits.train[:500])]
    assert half.frechet_train == pytest.approx(frechet_distance(*read)) and "frechet_train" in half.intervals


@pytest.mark.usefixtures("quick_judges")
def test_what_came_back_from_an_autoencoder_is_not_compared_with_what_went_in(digits, reader, eyes):
    """Image by image it is the training images themselves: no drawn set could come as near to them."""
    bench = make_bench(
        digits.test, digits.test_labels, reader=reader, extractor=eyes, how=QUICK, trained_on=digits.train
    )
    blurred = (0.98 * digits.train, digits.train_labels)
    best = ceiling(blurred, (digits.test, digits.test_labels), bench)
    assert best.frechet_train is None and "frechet_train" not in best.intervals and best.frechet > 0.1


def test_further_distances_are_measured_in_latents_and_in_the_backbone(digits, reader, eyes):
    halves = extractors.latents(lambda x: F.avg_pool2d(x, 2), "cpu")
    backbone = extractors.backbone(lambda x, directions: x.flatten(1)[:, :directions], "cpu")
    further = {"frechet_latents": halves, "frechet_backbone": backbone}
    bench = make_bench(digits.test, digits.test_labels, reader=reader, extractor=eyes, how=QUICK, further=further)
    pair = (digits.train[:200], digits.train_labels[:200]), (digits.test, digits.test_labels)
    result = ceiling(*pair, bench)
    small = [F.avg_pool2d(x, 2).flatten(1) for x in (digits.test, digits.train[:200])]
    assert result.frechet_latents == frechet_distance(*small)
    assert result.frechet_backbone == frechet_distance(digits.test.flatten(1), digits.train[:200].flatten(1))
    assert result.further_extractors == {"frechet_latents": extractors.LATENTS, "frechet_backbone": extractors.BACKBONE}
    assert result.readable == result.judge > 0.96 and result.cnn is result.logistic is None and result.images == 200
    assert 0.35 < result.two_sample_auc < 0.65 and "cnn" not in result.missing


@pytest.mark.parametrize(("shape", "width"), [((2, 7, 7), 98), ((4, 8, 8), 64), ((4, 16, 16), 64), ((300, 2, 2), 300)])
def test_wide_latents_are_averaged_over_positions(shape, width):
    z = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    result = extractors.latents(lambda x: z, "cpu").read(z)
    assert result.shape == (3, width) and result.mean().item() == pytest.approx(z.mean().item(), abs=1e-6)


def test_scores_are_frozen_refuse_nonsense_and_survive_json(reference_scores):
    assert Scores.model_validate_json(reference_scores.model_dump_json()) == reference_scores
    with pytest.raises(pydantic.ValidationError):
        reference_scores.frechet = 0.0
    for change in ({"frechet": float("nan")}, {"coverage": 1.2}, {"mood": 1}):
        with pytest.raises(pydantic.ValidationError):
            Scores(**{**reference_scores.model_dump(), **change})


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x, y: (x * float("nan"), y), "synthetic images: 1437 of 1437 hold NaN"),
        (lambda x, y: (x[:5], y[:5]), "synthetic images: 5 are too few to judge; give 6 or more"),
        (lambda x, y: (x, y + 1), "with 10 classes they must lie in 0 to 9"),
        (lambda x, y: (x[..., :6, :], y), "bring both to one size"),
    ],
)
def test_says_no_before_any_training(digits, bench, change, message):
    def never(*_):
        raise AssertionError("work started")

    with pytest.raises(BadInput, match=message):
        scores_of(*change(digits.train, digits.train_labels), bench, progress=never)


def test_of_a_single_class_there_is_no_accuracy_and_all_else(digits, bench):
    """Images that bring their own labels may all bring the same one; that must not end a run which is paid for."""
    scores = scores_of(digits.train, digits.train_labels * 0 + 3, bench)
    assert scores.logistic is None and scores.cnn is None and "labelled as class 3" in scores.missing["cnn"]
    assert 0.05 < scores.readable < 0.15 and scores.coverage > 0.9 and "cnn" not in scores.intervals


def test_refuses_too_few_real_images(digits, reader, eyes):
    with pytest.raises(BadInput, match="real test images: 5 are too few to judge; give 6 or more"):
        make_bench(digits.test[:5], digits.test_labels[:5], reader=reader, extractor=eyes, how=QUICK)


@pytest.mark.usefixtures("quick_judges")
def test_distances_are_measured_in_the_chosen_features_and_the_judge_still_reads(digits, reader):
    def read(images):
        return images.flatten(1), torch.full((len(images), 3), 1 / 3)

    pixels = FeatureReader("bare pixels", 64, read)
    bench = make_bench(digits.test, digits.test_labels, reader=reader, extractor=pixels, how=QUICK)
    scores = scores_of(digits.train, digits.train_labels, bench)
    assert scores.feature_extractor == "bare pixels" and scores.inception_score == pytest.approx(1)
    assert scores.frechet == frechet_distance(digits.test.flatten(1), digits.train.flatten(1))
    assert scores.readable > 0.99


def test_shares_of_the_test_images_say_which_of_them_count(reference_scores, digits):
    assert set(reference_scores.by_image) == {"coverage", "logistic", "cnn"}
    for name, text in reference_scores.by_image.items():
        row = unpacked(text)
        assert row.mean() == pytest.approx(getattr(reference_scores, name)) and set(row) <= {0, 1}
        assert packed(row) == text
