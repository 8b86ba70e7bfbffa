"""Two scores that a frequent class does not dominate: balanced accuracy, and the area under the ROC curve.

Both are means over the classes of the test images. Their intervals come from each image's contribution (DeLong et al. 1988
for the area; the same first-order argument for the shares), so that nothing is resampled.

Label: INTERNAL wherever the test images are private.
Not covered: the spread between training seeds.
"""

import numpy as np

from sfumato.evaluation.intervals import LEVEL, Interval, around


def balanced(right: np.ndarray, labels: np.ndarray) -> tuple[float, Interval]:
    """Mean over classes of the share of images read rightly, from bool `[m]` and int `[m]`, and its interval."""
    classes, counts = np.unique(labels, return_counts=True)
    shares = np.array([right[labels == label].mean() for label in classes])
    at = np.searchsorted(classes, labels)
    adds = (right - shares[at]) * (len(labels) / counts[at]) / len(classes)
    return float(shares.mean()), _interval(float(shares.mean()), adds, int(counts.min()) * len(classes))


def macro_area(probabilities: np.ndarray, labels: np.ndarray) -> tuple[float, Interval] | None:
    """Mean over classes of the area under the ROC curve of one class against the rest, and its interval.

    Class probabilities `[m, classes]` and int `[m]`; of two classes both areas are one. None where all are of one class.
    """
    classes = [label for label in np.unique(labels) if 0 < (labels == label).sum() < len(labels)]
    if not classes:
        return None
    parts = [_areas(probabilities[:, label], labels == label) for label in classes]
    value = float(np.mean([one for one, _ in parts]))
    few = min(min((labels == label).sum(), (labels != label).sum()) for label in classes)
    return value, _interval(value, np.mean([adds for _, adds in parts], axis=0), int(few))


def area(values: np.ndarray, positive: np.ndarray) -> float:
    """Area under the ROC curve of values `[m]` for bool `[m]`, ties counted by half; both kinds must be there."""
    return _areas(values, positive)[0]


def area_interval(values: np.ndarray, positive: np.ndarray) -> Interval:
    """Interval around the `area` of values `[m]` for bool `[m]`; both kinds must be there."""
    value, adds = _areas(values, positive)
    return _interval(value, adds, int(min(positive.sum(), (~positive).sum())))


def _areas(values: np.ndarray, positive: np.ndarray) -> tuple[float, np.ndarray]:
    """The area, and what each image adds to it beyond the mean, `[m]`: its variance over m is that of the area."""
    from scipy.stats import rankdata

    ranks, own = rankdata(values), np.empty(len(values))
    for kind in (positive, ~positive):
        own[kind] = rankdata(values[kind])
    yes, no = int(positive.sum()), int((~positive).sum())
    below = np.where(positive, (ranks - own) / no, 1 - (ranks - own) / yes)
    value = float(below[positive].mean())
    return value, (below - value) * np.where(positive, len(values) / yes, len(values) / no)


def _interval(value: float, adds: np.ndarray, images: int) -> Interval:
    """Value plus and minus 1.96 errors inside [0, 1]; Wilson's for so many images where all images add the same."""
    from scipy.stats import binomtest

    if not np.ptp(adds) > 0:
        wilson = binomtest(round(value * images), images).proportion_ci(LEVEL, method="wilson")
        return min(float(wilson.low), value), max(float(wilson.high), value)
    low, high = around(value, float(adds.std(ddof=1) / np.sqrt(len(adds))), least=0.0)
    return low, min(high, 1.0)
