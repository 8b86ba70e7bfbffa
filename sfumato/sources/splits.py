"""What the parts of a data set are called, and which of them are asked for."""

from collections.abc import Collection

from sfumato.sources.catalogue import Part

SPLITS = {"train": ("train",), "test": ("test",), "validation": ("validation", "valid", "val", "dev")}
"""Names of the splits, by what they are called here."""


def splits_of_part(there: Collection[str], part: Part) -> tuple[list[str], bool]:
    """Which of the splits that are there a part consists of, and whether there are parts at all.

    That takes `train`, and `test` or, where there is none, `validation`; where there are all three, `validation` is in the
    part `all` only.
    """
    test = next((name for name in ("test", "validation") if name in there), "")
    if "train" not in there or not test or part == "all":
        return list(there), bool("train" in there and test)
    return ["train" if part == "train" else test], True
