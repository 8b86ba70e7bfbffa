"""Utility of a synthetic image set: train on it, test on real images.

Two classifiers are quick: logistic regression on the pixels, and the small CNN of `sfumato.evaluation.classifier`. Where the
settings request all, the networks of the papers (`sfumato.evaluation.networks`) and ten more of scikit-learn's classifiers join
them; or DPPM's own CNN does. Accuracies of models trained on synthetic and on real images, tested on the same held-out images, compare directly.

dp-promise (Wang et al. 2024, Table 2) averages eleven of scikit-learn's and does not name them; these are those of
DP-MERF's and DP-MEPF's evaluation, which it follows, with scikit-learn's histogram boosting in place of XGBoost. They have
scikit-learn's own defaults; the logistic regression is one of them.

Label: INTERNAL wherever the test images are private.
Not covered: the spread between training seeds, and between draws of the synthetic images.
"""

import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfumato.config import Evaluation
from sfumato.errors import BadInput
from sfumato.evaluation import networks
from sfumato.evaluation.classifier import check_images, default_steps, predict, train_classifier
from sfumato.progress import Progress

ITERATIONS = 2000
"""Upper limit for the logistic regression's solver; all of MNIST takes 250."""
FAST = ("logistic", "cnn")
PAPERS = {"mlp": networks.mlp, "paper_cnn": networks.cnn, "resnet9": networks.resnet9}
DPPM = {"dppm_cnn": networks.dppm_cnn}
NETWORKS = PAPERS | DPPM


def _sklearn(part: str) -> Any:
    """A part of scikit-learn, loaded when a classifier is made, since estimating the time of judging needs none."""
    return importlib.import_module(f"sklearn.{part}")


TEN: dict[str, Callable[[int], Any]] = {
    "random_forest": lambda seed: _sklearn("ensemble").RandomForestClassifier(random_state=seed),
    "gaussian_naive_bayes": lambda _: _sklearn("naive_bayes").GaussianNB(),
    "bernoulli_naive_bayes": lambda _: _sklearn("naive_bayes").BernoulliNB(),
    "linear_svm": lambda seed: _sklearn("svm").LinearSVC(random_state=seed),
    "decision_tree": lambda seed: _sklearn("tree").DecisionTreeClassifier(random_state=seed),
    "linear_discriminant": lambda _: _sklearn("discriminant_analysis").LinearDiscriminantAnalysis(),
    "adaboost": lambda seed: _sklearn("ensemble").AdaBoostClassifier(random_state=seed),
    "bagging": lambda seed: _sklearn("ensemble").BaggingClassifier(random_state=seed),
    "gradient_boosting": lambda seed: _sklearn("ensemble").GradientBoostingClassifier(random_state=seed),
    "histogram_boosting": lambda seed: _sklearn("ensemble").HistGradientBoostingClassifier(random_state=seed),
}
"""scikit-learn's classifiers by name, each made from a seed; with the logistic regression they are eleven."""
ELEVEN = ("logistic", *TEN)


class Answer(NamedTuple):
    """Predictions of one classifier on the real test images; INTERNAL."""

    name: str
    right: Tensor
    """bool [m], whether it predicts the right class."""
    probabilities: Tensor | None
    """[m, classes]; None for those of scikit-learn's classifiers that are only averaged."""


def wanted(how: Evaluation, shape: tuple[int, int, int]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Names of the requested classifiers that can read images [c, h, w]; and the others, with the reason."""
    if how.classifiers == "fast":
        return FAST, {}
    channels, height, width = shape
    missing: dict[str, str] = {}
    too_small = "needs {} pixels a side, here are " + f"{height}x{width}"
    if how.classifiers == "dppm_cnn":
        if min(height, width) >= networks.DPPM_LEAST_SIDE:
            return (*FAST, *DPPM), missing
        return FAST, {"dppm_cnn": "DPPM's CNN " + too_small.format(networks.DPPM_LEAST_SIDE)}
    if min(height, width) < networks.CNN_LEAST_SIDE:
        missing["paper_cnn"] = "the papers' CNN " + too_small.format(networks.CNN_LEAST_SIDE)
    if channels == 1:
        missing["resnet9"] = "the ResNet-9 is for colour images"
    elif min(height, width) < networks.RESNET_LEAST_SIDE:
        missing["resnet9"] = "the ResNet-9 " + too_small.format(networks.RESNET_LEAST_SIDE)
    return tuple(name for name in (*FAST, *PAPERS, *TEN) if name not in missing), missing


def training_steps(names: tuple[str, ...], images: int, how: Evaluation) -> int:
    """Optimiser steps of these classifiers together, by the number of images."""
    epochs = networks.steps(images, how.epochs)
    return sum(default_steps(images) if name == "cnn" else epochs if name in NETWORKS else 0 for name in names)


def answers(
    names: tuple[str, ...],
    synthetic: Tensor,
    labels: Tensor,
    real_test: Tensor,
    test_labels: Tensor,
    *,
    how: Evaluation,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Iterator[Answer]:
    """Each classifier's name, where it is right on the real test images, and how sure it was of each class; INTERNAL.

    Trained on synthetic images [n, c, h, w] in [-1, 1] with labels int64 [n]. A class that no synthetic image has is
    hardly ever predicted: its test images count as wrong. scikit-learn's run on the CPU. The test images are read once a
    classifier is trained and choose nothing about it. `progress` receives the optimiser steps of all as one count.

    Many parameters: real and synthetic data, how they are judged, and what is shown of it.
    """
    classes = 1 + max(int(part.max()) if len(part) else 0 for part in (labels, test_labels))
    check_task(synthetic, labels, real_test, test_labels, classes=classes)
    if len(labels.unique()) < 2:
        raise BadInput(f"synthetic labels: only class {int(labels[0])}; a classifier needs two classes or more")
    total, done = training_steps(names, len(synthetic), how), 0

    def report(step: int, _: int) -> None:
        if progress is not None:
            progress(done + step, total)

    for name in names:
        sure = None
        if name == "logistic":
            read, sure = _logistic(synthetic, labels, real_test, classes)
        elif name == "cnn":
            model = train_classifier(synthetic, labels, classes, seed=seed, device=device, progress=report)
            sure = predict(model, real_test)
            read = sure.argmax(1)
        elif name in NETWORKS:
            trained = networks.trained(
                NETWORKS[name], synthetic, labels, classes,
                epochs=how.epochs, seed=seed, device=device, progress=report,
            )  # fmt: skip
            sure = networks.probabilities(trained, real_test)
            read = sure.argmax(1)
        elif name in TEN:
            few = with_each_class(spread(len(synthetic), how.scikit_images or len(synthetic)), labels.cpu())
            read = _scikit(TEN[name](seed), synthetic[few], labels[few], real_test)
        else:
            raise BadInput(f"classifier {name!r} is unknown; choose from {', '.join((*FAST, *NETWORKS, *TEN))}")
        done += training_steps((name,), len(synthetic), how)
        yield Answer(name, read == test_labels.cpu(), sure)


def spread(images: int, count: int) -> Tensor:
    """At most `count` positions, int64 `[min(images, count)]`, spread evenly over so many `images`."""
    return torch.linspace(0, images - 1, min(count, images)).round().long()


def with_each_class(few: Tensor, labels: Tensor) -> Tensor:
    """Positions `few` `[k]`, and that of the first image of each class in `labels` `[n]` that would be left out: some classifiers learn from nothing
    less than two classes."""
    missing = set(labels.unique().tolist()) - set(labels[few].tolist())
    return torch.cat(
        [few, torch.tensor([int((labels == label).nonzero()[0]) for label in sorted(missing)], dtype=few.dtype)]
    )


def check_task(synthetic: Tensor, labels: Tensor, real_test: Tensor, test_labels: Tensor, *, classes: int) -> None:
    """`BadInput` unless both sets, `[n, c, h, w]` in [-1, 1] with labels int64 `[n]` below `classes`, are sound (`check_images`) and of one size."""
    check_images(synthetic, labels, classes, name="synthetic images")
    check_images(real_test, test_labels, classes, name="real test images")
    if synthetic.shape[1:] != real_test.shape[1:]:
        sizes = f"{list(synthetic.shape[1:])} and {list(real_test.shape[1:])}"
        raise BadInput(f"synthetic and real test images are {sizes} (c, h, w); bring both to one size")


def _logistic(images: Tensor, labels: Tensor, others: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Predictions int64 [m] and probabilities [m, classes] on the test images by a logistic regression on pixels."""
    model = _sklearn("linear_model").LogisticRegression(max_iter=ITERATIONS)
    _fit(model, _pixels(images).astype(np.float32), labels)  # a third less time, half the memory
    sure = torch.zeros(len(others), classes)
    sure[:, torch.from_numpy(model.classes_)] = torch.from_numpy(model.predict_proba(_pixels(others))).float()
    return sure.argmax(1), sure


def _scikit(model: Any, images: Tensor, labels: Tensor, others: Tensor) -> Tensor:
    """Predictions int64 [m] on the test images by a classifier of scikit-learn's on pixels scaled to [0, 1]."""
    _fit(model, _pixels(images), labels)
    return torch.from_numpy(model.predict(_pixels(others)))


def _fit(model: Any, pixels: np.ndarray, labels: Tensor) -> None:
    """Train a classifier of scikit-learn's on pixels `[n, d]`; one that stops at its limit is scored as it is, and nobody who reads the scores can change that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", _sklearn("exceptions").ConvergenceWarning)
        model.fit(pixels, labels.cpu().numpy())


def _pixels(images: Tensor) -> np.ndarray:
    """Images as rows of pixels from 0 to 1."""
    return ((images.cpu().double() + 1) / 2).flatten(1).numpy()
