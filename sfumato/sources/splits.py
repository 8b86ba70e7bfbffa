"""Names of the splits of a data set, and the splits of each part."""

from collections.abc import Collection

from sfumato.sources.catalogue import Part

SPLITS = {"train": ("train",), "test": ("test",), "validation": ("validation", "valid", "val", "dev")}
"""Usual names of each split."""


def splits_of_part(there: Collection[str], part: Part) -> tuple[list[str], bool]:
    """The present splits that make up a part, and whether the source has parts at all.

    Parts need `train`, and `test` or, where there is none, `validation`; where there are all three, `validation` is in the part `all`
    only.
    """
    test = next((name for name in ("test", "validation") if name in there), "")
    if "train" not in there or not test or part == "all":
        return list(there), bool("train" in there and test)
    return ["train" if part == "train" else test], True
