import pydantic
import pytest
import torch

from sfumato.errors import BadInput
from sfumato.evaluation.classifier import default_steps, features
from sfumato.evaluation.fidelity import coverage, frechet_distance, share_readable
from sfumato.evaluation.scores import Scores, judge, reference
from sfumato.evaluation.utility import downstream_accuracy


@pytest.fixture(scope="module")
def real(digits):
    return dict(
        real_train=digits.train,
        real_train_labels=digits.train_labels,
        real_test=digits.test,
        real_test_labels=digits.test_labels,
        classes=10,
    )


@pytest.fixture(scope="module")
def reference_scores(real, judge_model) -> Scores:
    return reference(**real, judge_model=judge_model)


def test_reference_is_what_real_images_score(reference_scores, digits, judge_model):
    scores, train, test = reference_scores, features(judge_model, digits.train), features(judge_model, digits.test)
    assert scores.frechet == frechet_distance(test, train) and scores.coverage == coverage(test, train)
    assert scores.readable == share_readable(judge_model, digits.train, digits.train_labels)
    assert scores.logistic == downstream_accuracy(*digits, kind="logistic") and scores.images == 1437
    assert scores.logistic_interval[0] < scores.logistic < scores.logistic_interval[1]
    assert scores.coverage > 0.95 and scores.readable > 0.99 and scores.cnn > 0.96 and scores.logistic > 0.94
    assert "not Inception" in scores.feature_extractor


def test_trains_its_own_judge_and_counts_all_steps(real, reference_scores):
    generator, heard = torch.Generator().manual_seed(0), []
    images = (real["real_train"][:300] + 0.8 * torch.randn(300, 1, 8, 8, generator=generator)).clamp(-1, 1)
    scores = judge(images, real["real_train_labels"][:300], **real, progress=lambda *step: heard.append(step))
    total = default_steps(1437) + default_steps(300)
    assert heard == [(step + 1, total) for step in range(total)]
    assert scores.frechet > reference_scores.frechet and scores.logistic < reference_scores.logistic
    assert scores.precision < reference_scores.precision


def test_a_given_judge_spares_the_real_training_images(real, judge_model):
    untouched = {**real, "real_train": None, "real_train_labels": None}
    scores = judge(real["real_test"], real["real_test_labels"], **untouched, judge_model=judge_model)
    assert scores.frechet == pytest.approx(0, abs=1e-6) and scores.coverage == 1 and scores.images == 360


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
        (lambda x, y: (x, y * 0), "only class 0"),
        (lambda x, y: (x, y + 1), "with 10 classes they must lie in 0 to 9"),
        (lambda x, y: (x[..., :6, :], y), "bring both to one size"),
    ],
)
def test_says_no_before_any_training(real, change, message):
    def never(*_):
        raise AssertionError("work started")

    with pytest.raises(BadInput, match=message):
        judge(*change(real["real_train"], real["real_train_labels"]), **real, progress=never)


def test_refuses_a_judge_of_other_classes(real, judge_model):
    with pytest.raises(BadInput, match="knows 10 classes, not 11"):
        judge(real["real_train"], real["real_train_labels"], **{**real, "classes": 11}, judge_model=judge_model)
