"""What a synthetic image set is good for: train on it, test on real images.

Two models of different appetite, as in the papers: logistic regression on the pixels, and the small CNN of
`sfumato.evaluation.classifier`. Accuracies of models trained on synthetic and on real images, tested on the same
held-out images, compare directly.

Label: INTERNAL wherever the test images are private.
Not covered: the spread between training seeds, and between draws of the synthetic images; the interval covers only the
draw of the test images.
"""

from typing import Literal

import torch
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from sfumato.errors import BadInput
from sfumato.evaluation.classifier import Progress, check_images, predict, train_classifier

Kind = Literal["logistic", "cnn"]
ITERATIONS = 2000
"""Upper limit for the logistic regression's solver; all of MNIST takes 250."""


def downstream_accuracy(
    synthetic: Tensor,
    labels: Tensor,
    real_test: Tensor,
    test_labels: Tensor,
    *,
    kind: Kind,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> float:
    """Share of real test images that a model trained on synthetic ones reads right (mean of `downstream_correct`)."""
    correct = downstream_correct(
        synthetic, labels, real_test, test_labels, kind=kind, seed=seed, device=device, progress=progress
    )
    return float(correct.double().mean())


def downstream_correct(
    synthetic: Tensor,
    labels: Tensor,
    real_test: Tensor,
    test_labels: Tensor,
    *,
    kind: Kind,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Tensor:
    """Train on synthetic images [n, c, h, w] and read real test images [m, c, h, w]: bool [m], where right; INTERNAL.

    Pixels in [-1, 1], labels int64. A class that no synthetic image has is hardly ever read: its test images count as
    wrong. `seed`, `device` and `progress` are the CNN's; the logistic regression runs on the CPU and draws nothing.
    """
    classes = 1 + max(int(part.max()) if len(part) else 0 for part in (labels, test_labels))
    check_task(synthetic, labels, real_test, test_labels, classes=classes)
    if kind == "logistic":
        read = _logistic(synthetic, labels, real_test)
    elif kind == "cnn":
        model = train_classifier(synthetic, labels, classes, seed=seed, device=device, progress=progress)
        read = predict(model, real_test).argmax(1)
    else:
        raise BadInput(f"kind {kind!r} is unknown; choose logistic or cnn")
    return read == test_labels.cpu()


def check_task(synthetic: Tensor, labels: Tensor, real_test: Tensor, test_labels: Tensor, *, classes: int) -> None:
    """Raise BadInput unless both sets are sound (`check_images`), of one size, with two classes or more to learn."""
    check_images(synthetic, labels, classes, name="synthetic images")
    check_images(real_test, test_labels, classes, name="real test images")
    if synthetic.shape[1:] != real_test.shape[1:]:
        sizes = f"{list(synthetic.shape[1:])} and {list(real_test.shape[1:])}"
        raise BadInput(f"synthetic and real test images are {sizes} (c, h, w); bring both to one size")
    if len(labels.unique()) < 2:
        raise BadInput(f"synthetic labels: only class {int(labels[0])}; a classifier needs two classes or more")


def _logistic(images: Tensor, labels: Tensor, others: Tensor) -> Tensor:
    """Logistic regression (l2, C = 1) on pixels scaled to [0, 1]: classes int64 [m] that it reads in the others."""
    pixels, other_pixels = (((x.cpu().double() + 1) / 2).flatten(1).numpy() for x in (images, others))
    model = LogisticRegression(max_iter=ITERATIONS).fit(pixels, labels.cpu().numpy())
    return torch.from_numpy(model.predict(other_pixels))


def accuracy_interval(correct: Tensor, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval around the mean of correct (bool [n], n >= 1): what other test images might give.

    In place of a bootstrap, which for zeros and ones is a binomial quantile and shrinks to nothing at 0 and 1.
    """
    if correct.dim() != 1 or len(correct) == 0:
        raise BadInput(f"answers of shape {list(correct.shape)}: give bool [n] with n >= 1")
    interval = binomtest(int(correct.sum()), len(correct)).proportion_ci(level, method="wilson")
    return float(interval.low), float(interval.high)
