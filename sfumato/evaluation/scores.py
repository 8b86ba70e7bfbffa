"""All scores of one image set in one frozen value, always measured against the same held-out real images.

The reader is a CNN trained on the real training images; its answers say what is readable. The distances are measured in
the features of an extractor that has seen none of them (`sfumato.evaluation.extractors`): a small CNN trained on public
images, or Inception; every Scores value names it. Fidelity is measured against the real *test* images, so a set that
repeats the training images gains nothing over the reference, which is those training images themselves. Several sets
share a bench.

Nothing is chosen by these numbers: no training stops, goes on or keeps its weights by them.

Label: a Scores value looks at private images without noise and is INTERNAL, as a whole and number by number.
Not covered: published FIDs, even in Inception's features, are measured against training images; the spread between
readers, seeds and draws of the images.
"""

import base64
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from sfumato.config import Evaluation
from sfumato.errors import BadInput
from sfumato.evaluation import intervals, two_samples, utility
from sfumato.evaluation.classifier import Classifier, predict, train_classifier
from sfumato.evaluation.extractors import Eyes, FeatureReader
from sfumato.evaluation.fidelity import frechet_distance, inception_score, kernel_distance, neighbours
from sfumato.evaluation.intervals import Interval
from sfumato.evaluation.ranking import balanced, macro_area
from sfumato.images import shape_of
from sfumato.progress import Progress, silent

ONE_CLASS = "all images are of one class, so that there are none to tell apart"
"""The reason why there is no score of readability."""
NEIGHBOURS = 5
"""The k of coverage, precision, recall and density (Naeem et al. 2020), and so one less than `FEWEST_JUDGED`."""


class Scores(BaseModel):
    """All scores of one image set: frozen, refuses NaN and unknown fields, serialises to JSON; INTERNAL."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    frechet: float | None = Field(ge=0)
    """Frechet distance to the real test images in the extractor's features; less is better, 0 is best. None where there
    are no more images than features."""
    kid: float
    """Kernel distance (KID) to the real test images; less is better, and below 0 by chance alone."""
    inception_score: float = Field(ge=1)
    """Inception score by the extractor's classes; more is better, their number is best."""
    coverage: float = Field(ge=0, le=1)
    """Share of real test images with an image of the set in their neighbourhood (k = 5)."""
    precision: float = Field(ge=0, le=1)
    """Share of images of the set in some real test image's neighbourhood."""
    recall: float = Field(ge=0, le=1)
    """Share of real test images in the neighbourhood of some image of the set."""
    density: float = Field(ge=0)
    """How many real neighbourhoods hold an image of the set, on average, divided by k; may exceed 1."""
    readable: float | None = Field(ge=0, le=1)
    """Share of images that the reader reads as the class they were drawn for; None where there is one class alone."""
    logistic: float | None = Field(ge=0, le=1)
    """Accuracy on the real test images of a logistic regression trained on the set; this and what follows are None where all its
    images are labelled as one class."""
    cnn: float | None = Field(ge=0, le=1)
    """Accuracy on the real test images of the small CNN trained on the set."""
    mlp: float | None = Field(default=None, ge=0, le=1)
    """The same of the papers' MLP; this and the following are None where the settings do not request them."""
    paper_cnn: float | None = Field(default=None, ge=0, le=1)
    """The same of the papers' CNN."""
    resnet9: float | None = Field(default=None, ge=0, le=1)
    """The same of the ResNet-9."""
    dppm_cnn: float | None = Field(default=None, ge=0, le=1)
    """The same of DPPM's CNN."""
    eleven: float | None = Field(default=None, ge=0, le=1)
    """Mean accuracy of eleven of scikit-learn's classifiers, the logistic regression among them."""
    scikit: dict[str, float] = {}
    """The accuracies behind that mean, by classifier."""
    logistic_balanced: float | None = Field(default=None, ge=0, le=1)
    """Mean over classes of the logistic regression's accuracy: what guessing the commonest class cannot raise. None, like what
    follows, in scores of earlier versions."""
    logistic_auc: float | None = Field(default=None, ge=0, le=1)
    """Mean over classes of the area under its ROC curve, one class against the rest."""
    cnn_balanced: float | None = Field(default=None, ge=0, le=1)
    """The same two of the small CNN."""
    cnn_auc: float | None = Field(default=None, ge=0, le=1)
    mlp_balanced: float | None = Field(default=None, ge=0, le=1)
    """The same two of the papers' MLP."""
    mlp_auc: float | None = Field(default=None, ge=0, le=1)
    paper_cnn_balanced: float | None = Field(default=None, ge=0, le=1)
    """The same two of the papers' CNN."""
    paper_cnn_auc: float | None = Field(default=None, ge=0, le=1)
    resnet9_balanced: float | None = Field(default=None, ge=0, le=1)
    """The same two of the ResNet-9."""
    resnet9_auc: float | None = Field(default=None, ge=0, le=1)
    dppm_cnn_balanced: float | None = Field(default=None, ge=0, le=1)
    """The same two of DPPM's CNN."""
    dppm_cnn_auc: float | None = Field(default=None, ge=0, le=1)
    two_sample_auc: float | None = Field(default=None, ge=0, le=1)
    """How well a small CNN tells images of the set from real test images (`sfumato.evaluation.two_samples`): .5 is guessing, 1 is
    always."""
    frechet_backbone: float | None = Field(default=None, ge=0)
    """Frechet distance to the real test images in the features of the run's public backbone; None where it has none."""
    frechet_latents: float | None = Field(default=None, ge=0)
    """Frechet distance to the real test images in the latents of the run's public autoencoder; None where it has none."""
    frechet_train: float | None = Field(default=None, ge=0)
    """Frechet distance to as many private *training* images, in the features of `frechet`: what published FIDs are. A set that repeats its
    training images comes near to 0 here, so that it says nothing of copies; None of real images, also after an autoencoder, and in scores of
    earlier versions."""
    judge: float | None = Field(default=None, ge=0, le=1)
    """Share of real test images that the reader itself reads rightly: what `readable` may reach."""
    intervals: dict[str, Interval]
    """95 % interval of each score that has one, by name (`sfumato.evaluation.intervals`)."""
    missing: dict[str, str] = {}
    """The reason why a requested score has no number, by name."""
    by_image: dict[str, str] = {}
    """Scores that are a share of the real test images: which of these count, a bit each, so that two sets can be compared image by image
    (`packed`, `unpacked`); empty in scores of earlier versions."""
    images: int = Field(ge=1)
    """How many images the set has; the fidelity scores of sets of different sizes do not compare exactly."""
    feature_extractor: str
    """Name of the extractor in whose features the distances were measured."""
    further_extractors: dict[str, str] = {}
    """Names of the features of the further Frechet distances, by the name of the score."""

    def numbers(self) -> dict[str, float]:
        """The scores that are single numbers, by name."""
        return {name: float(value) for name, value in self if isinstance(value, int | float)}


@dataclass(frozen=True)
class Bench:
    """Everything with which sets are measured; INTERNAL."""

    images: Tensor
    """Real test images [n, c, h, w] in [-1, 1], n > 5."""
    labels: Tensor
    """int64 [n]."""
    features: Tensor
    """Features of the real test images, [n, d]."""
    classes: int
    reader: Classifier
    extractor: FeatureReader
    how: Evaluation
    seed: int
    device: str | torch.device
    further: Mapping[str, Eyes]
    """Further features for Frechet distances, by the name of the score."""
    further_features: Mapping[str, Tensor]
    """Further features of the real test images, [n, d]."""
    reader_reads: np.ndarray
    """1 for each real test image that the reader reads rightly, else 0, [n]."""
    train_features: Tensor | None = None
    """Features of private training images, [m, d]; None where nothing is compared with these."""


class ScoredSet(NamedTuple):
    """Some scores, their intervals where they have one, the reasons for missing numbers, and the test images that count, by name."""

    values: Mapping[str, float | None] = MappingProxyType({})
    spans: Mapping[str, Interval] = MappingProxyType({})
    missing: Mapping[str, str] = MappingProxyType({})
    by_image: Mapping[str, str] = MappingProxyType({})


def _joined(*parts: ScoredSet) -> ScoredSet:
    """All scores together; where several sets have the same name, the last one counts."""
    return ScoredSet(*(dict(ChainMap(*map(dict, kind[::-1]))) for kind in zip(*parts, strict=True)))


def packed(row: np.ndarray) -> str:
    """A row [n] of 0 and 1 as text: n, and its bits in base64."""
    return f"{len(row)}:{base64.b64encode(np.packbits(row.astype(bool)).tobytes()).decode()}"


def unpacked(text: str) -> np.ndarray:
    """The row, float [n], that `packed` wrote."""
    count, _, bits = text.partition(":")
    return np.unpackbits(np.frombuffer(base64.b64decode(bits), dtype=np.uint8), count=int(count)).astype(np.float64)


def make_bench(
    real_test: Tensor,
    labels: Tensor,
    *,
    reader: Classifier,
    extractor: FeatureReader,
    how: Evaluation,
    further: Mapping[str, Eyes] = MappingProxyType({}),
    trained_on: Tensor | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Bench:
    """The bench of real test images [n, c, h, w] in [-1, 1] with labels int64 [n]; they are read once, for all sets, and so are the private
    training images `trained_on` [m, c, h, w] that sets are compared with as published distances are.

    Many parameters: real and synthetic data, how they are judged, and what is shown of it.
    """
    _enough(real_test, "real test images")
    read, _ = extractor.read(real_test)
    own = {name: eyes.read(real_test) for name, eyes in further.items()}
    reads = _read_rightly(reader, real_test, labels)
    classes = reader.head.out_features
    train = None if trained_on is None else extractor.read(trained_on)[0]
    return Bench(real_test, labels, read, classes, reader, extractor, how, seed, device, further, own, reads, train)


def scores_of(
    synthetic: Tensor, labels: Tensor, bench: Bench, *, repeats: bool = False, progress: Progress | None = None
) -> Scores:
    """All scores of images [n, c, h, w] in [-1, 1], n > 5, drawn for labels int64 [n]; INTERNAL.

    Where the images are (`repeats`) the bench's training images, they are not compared with themselves. `progress` receives the optimiser steps of all trainings as one count.
    """
    bench = replace(bench, train_features=None) if repeats else bench
    utility.check_task(synthetic, labels, bench.images, bench.labels, classes=bench.classes)
    _enough(synthetic, "synthetic images")
    names, unread = _learners(synthetic, labels, bench.classes, bench.how)
    steps = scoring_steps(synthetic, labels, bench.classes, bench.how)

    def counted_from(offset: int) -> Progress:
        return lambda done, _: progress(offset + done, steps) if progress else None

    counted_from(0)(0, steps)
    return _scores(
        synthetic,
        bench,
        _joined(
            _seen(synthetic, labels, bench),
            _learnt(names, synthetic, labels, bench, counted_from(0)),
            _two_samples(synthetic, labels, bench, counted_from(steps - two_samples.STEPS)),
            ScoredSet(missing=unread),
        ),
    )


def scoring_steps(images: Tensor, labels: Tensor, classes: int, how: Evaluation) -> int:
    """Optimiser steps that `scores_of` takes for images [n, c, h, w] with labels int64 [n] of so many classes."""
    names, _ = _learners(images, labels, classes, how)
    return utility.training_steps(names, len(images), how) + two_samples.STEPS


def _learners(images: Tensor, labels: Tensor, classes: int, how: Evaluation) -> tuple[tuple[str, ...], dict[str, str]]:
    """The classifiers that learn from a set, and why each of the others does not."""
    names, unread = utility.wanted(how, shape_of(images))
    if len(labels.unique()) < 2:
        one = f"all images are labelled as class {int(labels[0])}, which leaves a classifier nothing to learn"
        reason = one if classes > 1 else ONE_CLASS
        return (), unread | dict.fromkeys(names, reason)
    return names, unread


def ceiling(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], bench: Bench, *, progress: Progress = silent
) -> Scores:
    """Scores of real images after an autoencoder, images [n, c, h, w] in [-1, 1] and labels int64 [n]: the best scores that images
    drawn in its latents can reach; INTERNAL.

    `readable` uses the held-out images, which the reader did not learn from; all other scores use the training part, since held-out
    images would be compared with themselves. So would they with the bench's training images, of which they are what came back: there is no such
    distance. No utility classifier learns from them.
    """
    bench = replace(bench, train_features=None)
    read = _read(*test, bench)
    return _scores(train[0], bench, _joined(_seen(*train, bench), _two_samples(*train, bench, progress), read))


def _scores(images: Tensor, bench: Bench, scored: ScoredSet) -> Scores:
    eleven = {name: scored.values[name] for name in utility.ELEVEN if "eleven" in scored.values}
    values: dict[str, Any] = {name: value for name, value in scored.values.items() if name not in utility.TEN}
    return Scores(
        **{"logistic": None, "cnn": None} | values,
        scikit={name: value for name, value in eleven.items() if value is not None},
        intervals=dict(scored.spans),
        missing=dict(scored.missing),
        by_image={name: bits for name, bits in scored.by_image.items() if name not in utility.TEN},
        images=len(images),
        feature_extractor=bench.extractor.name,
        further_extractors={name: eyes.name for name, eyes in bench.further.items()},
    )


def _mean(name: str, row: np.ndarray, bench: Bench) -> ScoredSet:
    """A score that is the mean of one number for each image [n]."""
    span = intervals.mean_interval(row, resamples=bench.how.resamples, seed=bench.seed)
    return ScoredSet({name: float(row.mean())}, {name: span})


def _shared(name: str, row: np.ndarray, bench: Bench) -> ScoredSet:
    """A score that is the share of the real test images that count, 0 or 1 for each, [n]."""
    return _mean(name, row, bench)._replace(by_image={name: packed(row)})


def _read_rightly(model: Classifier, images: Tensor, labels: Tensor) -> np.ndarray:
    """1 where a classifier reads an image as its label, else 0: float [n]."""
    return (predict(model, images).argmax(1) == labels.cpu()).double().numpy()


def _read(images: Tensor, labels: Tensor, bench: Bench) -> ScoredSet:
    """The scores of readability by the reader, or the reason why there are none."""
    if bench.classes < 2:
        return ScoredSet({"readable": None}, missing={"readable": ONE_CLASS})
    return _mean("readable", _read_rightly(bench.reader, images, labels), bench)


def _seen(synthetic: Tensor, labels: Tensor, bench: Bench) -> ScoredSet:
    """Scores that need no training: readability by the reader, and distances in all features."""
    drawn, probabilities = bench.extractor.read(synthetic)
    kid, error = kernel_distance(bench.features, drawn)
    score, table = inception_score(probabilities)
    near = neighbours(bench.features, drawn, k=NEIGHBOURS)
    rows = {"precision": near.precise, "recall": near.recalled, "density": near.held}
    around = intervals.score_interval(score, table, resamples=bench.how.resamples, seed=bench.seed)
    spans = {"kid": intervals.around(kid, error), "inception_score": around}
    others = [(name, eyes.read(synthetic), bench.further_features[name]) for name, eyes in bench.further.items()]
    if bench.train_features is not None:
        others.append(("frechet_train", drawn, bench.train_features))
    return _joined(
        ScoredSet({"kid": kid, "inception_score": score}, spans),
        _shared("coverage", near.covered, bench),
        *(_mean(name, row, bench) for name, row in rows.items()),
        _read(synthetic, labels, bench),
        *([_mean("judge", bench.reader_reads, bench)] if bench.classes > 1 else []),
        *(_frechet(*pair, bench) for pair in (("frechet", drawn, bench.features), *others)),
    )


def _frechet(name: str, drawn: Tensor, real: Tensor, bench: Bench) -> ScoredSet:
    """A Frechet distance between features [m, d] and [n, d], or the reason why there is none."""
    width = real.shape[1]
    few = min((len(drawn), "synthetic images"), (len(real), "real test images"))
    if few[0] <= width:
        reason = f"{few[0]} {few[1]} are too few for {width} features; it takes {width + 1} or more of both"
        return ScoredSet({name: None}, missing={name: reason})
    value = frechet_distance(real, drawn)
    if width > intervals.WIDEST:
        return ScoredSet({name: value})
    around = intervals.frechet_interval(value, real, drawn, resamples=bench.how.resamples, seed=bench.seed)
    return ScoredSet({name: value}, {name: around})


def _learnt(names: tuple[str, ...], synthetic: Tensor, labels: Tensor, bench: Bench, progress: Progress) -> ScoredSet:
    """Accuracy on the real test images of each of these classifiers, trained on the set."""
    sets, rows, true = [], {}, bench.labels.cpu().numpy()
    if names:
        task = (synthetic, labels, bench.images, bench.labels)
        for name, right, sure in utility.answers(
            names, *task, how=bench.how, seed=bench.seed, device=bench.device, progress=progress
        ):
            rows[name] = right.double().numpy()
            if sure is not None:
                both = {"balanced": balanced(rows[name], true), "auc": macro_area(sure.double().numpy(), true)}
                sets += [ScoredSet({f"{name}_{k}": v[0]}, {f"{name}_{k}": v[1]}) for k, v in both.items() if v]
    shares = [_shared(name, row, bench) for name, row in rows.items()]
    if set(utility.ELEVEN) <= set(rows):
        shares.append(_mean("eleven", np.mean([rows[name] for name in utility.ELEVEN], axis=0), bench))
    return _joined(*sets, *shares)


def _two_samples(synthetic: Tensor, labels: Tensor, bench: Bench, progress: Progress) -> ScoredSet:
    """How well a classifier separates images from the real test images."""
    name = "two_sample_auc"
    result = two_samples.two_sample_test(
        bench.images, bench.labels, synthetic, labels, seed=bench.seed, device=bench.device, progress=progress
    )
    return (
        ScoredSet({name: None}, missing={name: result})
        if isinstance(result, str)
        else ScoredSet({name: result.auc}, {name: result.interval})
    )


def _enough(images: Tensor, name: str) -> None:
    if len(images) <= NEIGHBOURS:
        raise BadInput(f"{name}: {len(images)} are too few to judge; give {NEIGHBOURS + 1} or more")


def train_reader(
    real_train: Tensor,
    real_train_labels: Tensor,
    *,
    classes: int,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Classifier:
    """The reader, a CNN trained without privacy on real images [n, c, h, w] in [-1, 1]: INTERNAL, and may not leave."""
    return train_classifier(real_train, real_train_labels, classes, seed=seed, device=device, progress=progress)
