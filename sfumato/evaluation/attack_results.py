"""Results of membership attacks and of the copy check, as plain values that a record can hold without the libraries that compute them; INTERNAL."""

from pydantic import BaseModel, ConfigDict, Field

LEAST_RECORDS = 10
"""Smallest number of members, and of others, by which an attack is judged."""


class Value(BaseModel):
    """Base of an audit's results: frozen, refuses NaN and unknown fields, serialises to JSON; INTERNAL."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Membership(Value):
    """How well one attack separates members from others."""

    name: str
    """The attack."""
    auc: float = Field(ge=0, le=1)
    """Area under the ROC curve: chance that a member scores above another record, ties halved; 0.5 is guessing."""
    auc_interval: tuple[float, float]
    """95 % bootstrap interval of `auc` over draws of the records; it shrinks to a point at 0 and 1."""
    strict_rate: float = Field(ge=0, le=1)
    """True positive rate where 1 % of the others are taken for members."""
    loose_rate: float = Field(ge=0, le=1)
    """True positive rate where 10 % of the others are taken for members."""
    curve: tuple[float, ...]
    """True positive rates at the false positive rates `CURVE_RATES`."""
    members: int = Field(ge=LEAST_RECORDS)
    others: int = Field(ge=LEAST_RECORDS)
    t: int | None = None
    """The diffusion time of the losses, where the attack looks at one."""

    @property
    def succeeded(self) -> bool:
        """Whether the interval of the area lies above one half."""
        return self.auc_interval[0] > 0.5


class Pair(Value):
    """An image and the training record that it comes nearest to."""

    image: int
    record: int
    """Position in the training part."""
    distance: float
    """Root mean squared difference per pixel, pixels in [-1, 1]."""
    held_out_distance: float
    """The same to the nearest held-out record."""


class CopyCheck(Value):
    """Whether images repeat training records more than held-out ones explain."""

    images: int = Field(ge=1)
    train: int = Field(ge=1)
    """Training records compared with."""
    test: int = Field(ge=1)
    """Held-out records compared with."""
    copy_distance: float = Field(gt=0)
    """Largest distance of a copy in this set."""
    copies: int = Field(ge=0)
    """Images that copy a training record."""
    copies_held_out: int = Field(ge=0)
    """Images that copy a held-out record: chance, or records that are in both parts."""
    unexplained: int = Field(ge=0)
    """Images that copy a training record and no held-out one."""
    nearest_train: float = Field(ge=0, le=1)
    """Share of images whose nearest real record is a training record; ties count by half."""
    expected_train: float = Field(ge=0, le=1)
    """The same share if images did not depend on who was in the training part: n_train / (n_train + n_test)."""
    p_value: float = Field(ge=0, le=1)
    """Chance that, of all real records that are nearest to some image, as many are training records if the parts were
    split at random after the images were drawn (hypergeometric, one-sided). Small also where the parts differ by themselves."""
    median_train: float = Field(ge=0)
    median_test: float = Field(ge=0)
    closest: tuple[Pair, ...]
    """The pairs with the smallest distances, nearest first."""

    @property
    def passed(self) -> bool:
        """False as soon as one image copies a training record and no held-out one."""
        return self.unexplained == 0
