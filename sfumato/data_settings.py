"""The settings that say which images are private and which are public, and how their files are read; see `sfumato.config`."""

import math
import os.path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from sfumato.marks import OF_THE_PRIVATE_SIDE, PUBLIC_IMAGES, not_for
from sfumato.section import LATER, NOT_HASHED, Section

Crop = Literal["none", "centre"]
"""`centre` first cuts the largest square out of the middle of an image, so that resizing does not stretch it."""


FEWEST_PIXELS, MOST_PIXELS = 8, 1024
"""The smallest side at which drawn public images show something, and the largest that images are brought to."""


def _names(value: Any) -> Any:
    """Read a single name as a list of one, and numbers as texts."""
    listed = ([value] if value != "" else []) if isinstance(value, str | int) else value
    if not isinstance(listed, list | tuple):
        return value
    return tuple(str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in listed)


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        raise PydanticCustomError("names", "name each class once: {name} is there twice", {"name": repr(twice[0])})
    return names


def _at_home(value: Any) -> Any:
    """Expand `~` in each part of a source, since a shell does not expand it behind `--set data.private=`."""
    return "+".join(os.path.expanduser(part) for part in value.split("+")) if isinstance(value, str) else value


if TYPE_CHECKING:
    Names = tuple[str, ...]
    Source = str
else:
    Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
    Source = Annotated[str, BeforeValidator(_at_home)]
"""Names of classes, or their positions; and a source of images, by name or path."""


AUTO_WINDOW, RECORD_WINDOW = "auto", "record"
"""The windows that are no two numbers: what a file declares, and an image's own percentiles."""


def window_bounds(window: str) -> tuple[float, float] | None:
    """The values of black and white that `lo,hi` declares; None for the other windows; `ValueError` for what is none."""
    if window in (AUTO_WINDOW, RECORD_WINDOW):
        return None
    low, high = (float(part) for part in window.split(","))
    if not -math.inf < low < high < math.inf:
        raise ValueError(window)
    return low, high


def _window(value: Any) -> Any:
    """A window as one text; two numbers may also be a list of them."""
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value).replace(" ", "")
    try:
        bounds = window_bounds(text)
    except ValueError:
        raise PydanticCustomError(
            "window", "give auto, record, or two numbers lo,hi of which the first is the smaller, such as 0,4095"
        ) from None
    return text if bounds is None else ",".join(f"{bound:.17g}" for bound in bounds)


Window = Annotated[str, BeforeValidator(_window)]
"""How grey of more than 8 bits becomes 256 levels: `auto`, `record` or `lo,hi`."""


class Slices(Section):
    """The slices of a volume (NIfTI) that are its pictures."""

    axis: Literal["axial", "coronal", "sagittal"] = "axial"
    """Across which axis of the body they are cut; the file's own orientation says which of its axes that is."""
    count: int = Field(default=1, ge=1, le=1024)
    """Slices of each volume, evenly spread. All of a volume belong to one person: with more than one the volume is the unit that is
    protected, unless `data.group` names a larger one."""
    first: float = Field(default=0.4, ge=0, lt=1)
    """Their beginning, as a share of the axis."""
    last: float = Field(default=0.6, gt=0, le=1)
    """Their end, as a share of the axis."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.first >= self.last:
            raise PydanticCustomError("slices", "give a place first that lies before last, such as 0.4 and 0.6")
        return self


class Decoding(Section):
    """How the files of a source become pictures of 8 bits with labels."""

    window: Window = AUTO_WINDOW
    slices: Slices = Slices()
    labels: bool = True
    """False makes all pictures one class, whatever labels there are."""


class Columns(Section):
    """Names of the columns of a table of images."""

    path: str = ""
    """Column of the paths, each below the table's own folder, or of the pictures themselves (Parquet); empty takes `path`, or `file_name`
    where there is none, and for pictures `image`, `img`, or the only one."""
    label: str = "label"
    """Column of the class names."""


class Data(Section):
    """Which images are private and which are public."""

    private: Annotated[Source, not_for(PUBLIC_IMAGES, at="")] = "digits"
    """`digits` (scikit-learn's, 8x8), a data set by name (`mnist`, `cifar10`, ...), a folder of class folders (also below `train/` and
    `test/`), a table of paths and labels (CSV, JSON lines, Parquet) or a folder with one called `metadata`, Parquet that holds the
    pictures themselves (a file, or a folder in splits, as Hugging Face keeps data sets), a folder with IDX files, or an NPZ file (also
    in splits, as MedMNIST is)."""
    public: Source = "glyphs"
    """`glyphs` (characters rendered from matplotlib's fonts, for strokes), `shapes` (random forms, colours and textures, for anything else),
    anything that `private` may be, or a mixture such as `omniglot+glyphs`, whose class names begin with the name of their source. Left out
    it is `shapes` beside private images in colour, and `glyphs+shapes` beside grey ones that are not known by name to be writing."""
    shares: tuple[float, ...] = ()
    """Shares of the sources in a public mixture, summing to 1; empty takes all that each has. A mixture with glyphs is brought to
    the height of the private images."""
    columns: Columns = Columns()
    """Names of the columns, where a side is a table."""
    group: Annotated[str, OF_THE_PRIVATE_SIDE] = ""
    """Which private images belong together, to one person for example, who is then protected with all of them: in a table the name
    of a column (empty takes `group` where there is one), in an NPZ file that of an array (empty takes `groups`), in class folders
    `folder` (`class/PERSON/image.png`) or `prefix` (the file name up to its first `_`), among DICOM files `patient` (the ID in
    the header, which is hashed at once and never stored). `none` makes each image stand for itself."""
    unit: Annotated[str, OF_THE_PRIVATE_SIDE] = Field(default="person", pattern=r"^[a-z][a-z -]{0,30}$")
    """Name of such a group, in one word for the certificate."""
    folder: Annotated[Source, NOT_HASHED] = ""
    """Where data sets by name lie, or are put after a download; empty takes `SFUMATO_DATA`, else `data` in the home."""
    window: Annotated[Window, LATER, OF_THE_PRIVATE_SIDE] = AUTO_WINDOW
    """How private grey of more than 8 bits (PNG, TIFF, DICOM, NIfTI) becomes 256 levels: `auto`, by the range that each file declares (its bits;
    in a DICOM its bits stored, rescaling and window, in NIfTI `cal_min` and `cal_max`); `record`, from the 1st to the 99th percentile
    of each image by itself; `lo,hi`, the values of black and white for all, in the files' own unit (after rescaling). Nothing is ever
    taken over the private set."""
    public_window: Annotated[Window, LATER] = AUTO_WINDOW
    """The same for public images."""
    slices: Annotated[Slices, LATER] = Slices()
    """Which slices of a volume are pictures, where a side holds NIfTI files."""
    unlabelled: Annotated[Literal["none", "private", "public", "both"], LATER] = "none"
    """Sides whose labels are left aside, so that all their images are one class; one without labels is so by itself. With `data.group=folder` the
    folders of such a side are the groups (`PERSON/image.png`)."""
    name: Annotated[str, OF_THE_PRIVATE_SIDE] = ""
    """Name of the private set in the ledger; empty takes the last part of `private`."""
    size: int = Field(default=0, ge=0, le=MOST_PIXELS)
    """Side in pixels that all images are resized to; 0 keeps the private ones as they are and brings the public ones to their size."""
    crop: Crop = "none"
    """The part of every image that is used, before it is resized."""
    invert: Literal["none", "private", "public", "both"] = "none"
    """Images whose grey levels are turned round. Both sides should have light writing on dark ground or both the reverse; glyphs
    and all handwriting by name (MNIST, Omniglot, ...) are white on black."""
    channels: Literal[0, 1, 3] = 0
    """1 converts to grey, 3 to colour, 0 keeps the private images as they are and converts the public ones to what those are."""
    held_out: Annotated[float, not_for(PUBLIC_IMAGES, at=0.5)] = Field(default=0.2, gt=0, lt=1)
    """Share of the private records kept for evaluation, where the source has no test part of its own."""
    share: Annotated[float, Field(gt=0, le=1), LATER, OF_THE_PRIVATE_SIDE] = 1.0
    """Share of the private training records (or groups) that is used, for trials. Each record is taken or left by a hash of itself
    alone, so that the statement holds for the whole collection."""
    records: Annotated[int, Field(ge=0), LATER, OF_THE_PRIVATE_SIDE] = 0
    """Number of private records (or groups) on the side that is trained on, before a part is held out or a share taken: a public constant
    that no price covers, from which rates and delta follow. 0 takes it once per version of the set, and from the ledger afterwards."""
    classes: Annotated[tuple[str, ...], AfterValidator(_once), LATER, OF_THE_PRIVATE_SIDE] = ()
    """Names of the private classes, as unprotected as their number: a class may be without images, and images of a class that is not
    named here are left out. Empty takes those that are there, once per version of the set."""
    private_classes: Annotated[Names, LATER, OF_THE_PRIVATE_SIDE] = ()
    """Classes of the source `private` that make up the private set, by names or positions from 0; records of others are no part of it
    and are not looked at. Empty takes all. A source may be on both sides by classes that differ."""
    public_classes: Annotated[Names, LATER] = ()
    """Classes of the source `public` that are used, in the same way; empty takes all."""
    public_without: Annotated[Names, LATER] = ()
    """Classes of the source `public` that are left out, in the same way: all but these are used."""
    public_noise: Annotated[float, Field(ge=0, le=1), LATER] = 0.0
    """Standard deviation of Gaussian noise that joins every public image once, as a share of the way from black to white, for trials with public
    images of poor quality (Jiang et al. 2025, Table 8, whose N(0, 0.1) has a deviation of 0.316)."""
    limit: Annotated[int, OF_THE_PRIVATE_SIDE] = Field(default=0, ge=0)
    """No longer possible, and refused: use only the first so many private records. A record added in front would push another one
    out, which no price covered; `share` takes its place."""
    glyphs_per_class: int = Field(default=400, ge=1)
    """Rendered images per character of `glyphs`."""
    glyphs: Literal["letters", "digits", "both"] = "letters"
    """Which characters `glyphs` renders. Digits beside private digits tell the public model what it should learn from the private
    side; whoever chooses them should say so."""
    shapes_per_class: Annotated[int, Field(ge=1), LATER] = 2500
    """Drawn images of each of the eight classes of `shapes`."""

    def decoding(self, side: Literal["private", "public"]) -> Decoding:
        """The decoding of that side's files."""
        window = self.window if side == "private" else self.public_window
        return Decoding(window=window, slices=self.slices, labels=self.unlabelled not in (side, "both"))


class Constants(Section):
    """Facts about a version of a private set that count as public knowledge, and so are *unprotected*: no price covers them.

    They are counted once per version, or declared, written into the ledger and used from there, so that rates, divisors, deltas and
    thresholds are the same for two sets that differ in one record.
    """

    records: int
    """Records on the side that is trained on, or groups where they have some; before a part is held out or a share taken."""
    images: int
    """Images there; the same number where each stands for itself."""
    classes: tuple[str, ...]
    """Names of the classes, in the order of their labels."""
    parts: bool = False
    """Whether the source itself marks the held-out records."""

    def expected(self, count: int, *, held_out: float, share: float) -> int:
        """The number of `count` records that a run trains on: those not held out, times the share."""
        test_records = 0 if self.parts else round(count * held_out)
        return round((count - test_records) * share)
