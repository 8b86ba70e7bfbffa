"""The only access to private images. Every access is written to the ledger before it happens.

`spending` opens the door for a mechanism that pays with noise, `looking` for one that does not and whose results are
therefore INTERNAL. Records live inside the `with` block and nowhere else: never a task's argument or result, never in
a cache key. Each time the door opens, the images are checked against the digest under which the ledger knows them,
and their files must be as they were when that was taken: a set that is written to while it is read is refused.

`inspecting` looks through a set before it is settled what belongs to it.

Not covered: `identify` reads the images before it can write an entry, since the entry holds their digest; nothing but
the digest leaves it.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from sfumato import sources
from sfumato.config import FEWEST_JUDGED, LATER, NOT_HASHED, Columns, Constants, Crop, Decoding, Relation, Section
from sfumato.errors import BadInput, Stopped, in_full
from sfumato.images import ImageSet, joined, share_a_picture
from sfumato.privacy.accounting.events import AnyEvent
from sfumato.privacy.ledger.balance import check_set
from sfumato.privacy.ledger.fingerprints import Prints, prints_of
from sfumato.privacy.ledger.ledger import Entry, Ledger, Reservation, entry_label
from sfumato.privacy.noise import GENERATOR, INJECTED
from sfumato.progress import Progress, silent

Content = TypeVar("Content")


class PrivateSet(Section):
    """A private image collection: its name in the ledger and how it is read."""

    name: str
    source: str
    size: int = 0
    channels: Literal[0, 1, 3] = 0
    held_out: float = 0.2
    crop: Crop = "none"
    invert: bool = False
    folder: Annotated[str, NOT_HASHED] = ""
    """The folder of data sets by name; a place, not part of their content."""
    share: Annotated[float, LATER] = 1.0
    """Share of the training records that is used (`sources.used_by_hash`)."""
    columns: Columns = Columns()
    decoding: Annotated[Decoding, LATER] = Decoding()
    """How files become pictures (`Data.window`, `Data.slices`)."""
    classes: Annotated[tuple[str, ...], LATER] = ()
    """The class list, a public constant; empty takes the classes that are there."""
    group: str = sources.NO_GROUPS
    """Which records belong together (`Data.group`)."""
    only: Annotated[tuple[str, ...], LATER] = ()
    """Names of the classes that make up the set (`Data.private_classes`); records of others are no part of it, nor of its digest."""
    unit: str = ""
    """Name of a group, for the ledger; empty where each record stands for itself."""
    version: int = 1
    """The version of the set that the ledger counts, so that no cache returns artifacts of another version."""

    def reading(self, part: sources.Part) -> sources.Reading:
        """How a part of it is read."""
        return sources.Reading(
            part,
            size=self.size,
            channels=self.channels,
            crop=self.crop,
            invert=self.invert,
            held_out=self.held_out,
            share=self.share,
            folder=self.folder,
            columns=self.columns,
            decoding=self.decoding,
            group=self.group,
            classes=self.classes,
            only=self.only,
        )


@dataclass(frozen=True)
class Access:
    """The request for an access: whose it is, what it is for, and the terms in which it is paid."""

    ledger: Ledger
    private: PrivateSet
    run: str
    stage: str
    purpose: str
    code_version: str
    relation: Relation
    delta: float
    parents: tuple[str, ...] = ()
    images: int | Literal["any"] = "any"
    """Images covered by what is paid."""
    claim: dict[str, Any] | None = None
    reason: str = ""
    """The reason for a very large epsilon, where there is one; for the ledger."""
    comparison: bool = False
    """The result only serves an INTERNAL comparison: the access is written as a look, costs nothing and can never leave."""
    following: tuple[AnyEvent, ...] = ()
    """The events that the run will reserve after this; the budget must bear them too before anything is paid."""
    canaries: ImageSet | None = None
    """Images added to the training part, for an audit; in a comparison only."""

    def __post_init__(self) -> None:
        if self.canaries is not None and not self.comparison:
            raise ValueError("canaries may go into a comparison only: what they are mixed with must never leave")


@dataclass(frozen=True)
class Payment:
    """A payment that the stage commits once its result is stored; until then the reservation stands in full."""

    reservation: Reservation
    events: tuple[AnyEvent, ...]

    def commit(self, ledger: Ledger, artifact: str) -> Entry:
        """Write the events really taken, and the address of the artifact made under them."""
        return ledger.commit(self.reservation, self.events, artifact=artifact)


@dataclass(frozen=True)
class Visit:
    """An open door: the private images and the ledger entry that stands for having seen them."""

    images: ImageSet
    entry: str
    """Hash of that entry."""
    label: str
    """The label that this entry gives to everything made inside."""

    hash: str = ""
    """Hash of the reservation, by which it can be settled if this process dies; empty for a look."""
    allow: Callable[[Sequence[AnyEvent]], object] = field(default=lambda events: None, repr=False)
    """Write down, before it happens, up to which events the work will go."""

    payment: Payment | None = None
    """The payment to commit; None where nothing is paid."""

    @property
    def entries(self) -> dict[str, str]:
        """The entry's label by its hash, for the store."""
        return {self.entry: self.label}


def identify(private: PrivateSet) -> str:
    """Decode every image of the set and return its content digest (INTERNAL); `Unnamed` where an image fails."""
    return _unnamed(private, lambda: sources.source_digest(private.source, private.reading("all")))


def _files(private: PrivateSet) -> str:
    """The state of the files of the set (INTERNAL), to compare with later (`_unchanged`)."""
    return _unnamed(private, lambda: sources.files_now(private.source, private.reading("all")))


def _unchanged(private: PrivateSet, files: str, images: ImageSet) -> ImageSet:
    """These images of the set; `BadInput` where its files are no longer `files`, so that the images may not be those with the digest in the ledger."""
    if _files(private) != files:
        raise BadInput(
            f"files of '{private.name}' changed while they were read: nothing was learnt from them; wait until whatever writes there has "
            "ended, and run again"
        )
    return images


def _unnamed(private: PrivateSet, work: Callable[[], Content]) -> Content:
    """Run `work` on the set and return its result; no error names a file of the set."""
    return sources.unnamed(private.source, f"the private set '{private.name}'", work)


def fingerprinted(access: Access) -> Prints:
    """Fingerprints of all records of the set, made with the ledger's key and for it alone."""
    private = access.private
    key, reading = access.ledger.print_key(), private.reading("all")
    return _unnamed(private, lambda: prints_of(sources.stored_pictures(private.source, reading), key))


def check_in(
    access: Access,
    public: ImageSet | None = None,
    *,
    new_version: bool = False,
    constants: Constants | None = None,
) -> Entry:
    """Decode the whole set once, as every run does before it trains anything, and write that look.

    Raises `BadInput` for a damaged image, for images or parts that do not fit together, for a part without images, and
    where the ledger knows other images under this name (unless a person declares a `new_version`): all that would
    otherwise end a run after it has paid. With the look written, records that are in other sets, or in earlier versions of
    this one, join it to them: what they cost is counted together (`sfumato.privacy.ledger.joins`). It then also refuses `public`
    images among which there are private ones, records that are not used included; both as they are after cropping and
    resizing, in whatever files and classes they lie. That refusal tells the person who runs this that there is a copy, not
    which and how many.

    `constants` are what the run takes for public knowledge; they stand in the entry of the look, for this run and for later ones.

    Not covered: copies that differ in a pixel, such as compressed anew or cropped by hand.
    """
    files = _files(access.private)
    digest, train, test = _sound(access.private)
    _warn_of_text(access.private)
    prints = None if access.ledger.has_prints(access.private.name, digest) else fingerprinted(access)
    train = _unchanged(access.private, files, train)
    if new_version:
        access.ledger.new_version(
            access.private.name,
            digest,
            run=access.run,
            code_version=access.code_version,
            prints=prints,
            unit=access.private.unit,
        )
    entry = _looked(access, digest, constants=constants)
    access.ledger.note_records(access.private.name, digest, prints)
    if public:
        _refuse_copies(access.private, public, train, test)
    return entry


class _WholeSet(NamedTuple):
    """A private set as it is in its files."""

    digest: str
    """Of its content."""
    train: ImageSet
    """All training images, whatever share of them a run uses."""
    test: ImageSet


def _sound(private: PrivateSet, together: sources.Together | None = None) -> _WholeSet:
    """The whole set, each image decoded once, or as it was gathered `together`; `BadInput` for any fault that would end a run after it has paid."""
    together = together or sources.Together(private.source, private.reading("all"), _parts(private))
    whole = _unnamed(private, together.whole)
    train, test, *used = (_grouped(private, part) for part in whole.parts)
    check_parts(private, used[0] if used else train, test)
    return _WholeSet(whole.digest, train, test)


def _parts(private: PrivateSet) -> list[sources.Reading]:
    """How the parts of a whole set are read: training images, held-out ones, and the share that a run uses where that is not all."""
    everyone = private.model_copy(update={"share": 1.0})
    return [
        everyone.reading("train"),
        everyone.reading("test"),
        *([private.reading("train")] if private.share < 1 else []),
    ]


def _warn_of_text(private: PrivateSet) -> None:
    """Say that pictures hold text by their own headers, to the person who runs this: not which, and not how many."""
    if _unnamed(private, lambda: sources.text_burned_in(private.source, private.reading("all"))):
        warnings.warn(
            f"the private set '{private.name}' holds DICOM images whose header says that text is burned into the picture (BurnedInAnnotation): "
            "what is written there is learnt like everything else; cover it, or take them out",
            stacklevel=1,
        )


def _refuse_copies(private: PrivateSet, public: ImageSet, *parts: ImageSet) -> None:
    if any(share_a_picture(public, part) for part in parts):
        raise BadInput(
            f"the public images hold copies of private images of '{private.name}': public images must not come from the "
            "private collection; take the copies out of data.public (sfumato check --public shows them), or choose another"
        )


def _unfit(access: Access, public: ImageSet | None, together: sources.Together) -> tuple[str, str]:
    """Why `check_in` would refuse the set by itself, gathered `together`, naming its files, and why beside the `public` images; each empty where
    it would not."""
    private = access.private
    unfit = ""
    parts: Sequence[ImageSet] = ()
    try:
        digest, *parts = _sound(private, together)
        check_set(access.ledger.entries(), private.name, digest)
    except BadInput as refusal:
        unfit = in_full(refusal)
    try:
        if public:
            _refuse_copies(private, public, *parts)
    except BadInput as refusal:
        return unfit, in_full(refusal)
    return unfit, ""


def check_parts(private: PrivateSet, train: ImageSet, test: ImageSet) -> None:
    """Refuse training and held-out images of different shapes, and parts too small to judge anything by."""
    shapes = train.pixels.shape[1:], test.pixels.shape[1:]
    if shapes[0] != shapes[1]:
        c, h, w = (f"{a} and {b}" for a, b in zip(*shapes, strict=True))
        raise BadInput(
            f"training and held-out images of '{private.name}' differ in shape (channels {c}; height {h}; width {w}): "
            "use --set data.size=SIDE or data.channels=1 to make them alike"
        )
    for name, part in (("training", train), ("held-out", test)):
        if len(part) < FEWEST_JUDGED:
            raise BadInput(
                f"the {name} images of '{private.name}' are too few to judge the result by, it takes {FEWEST_JUDGED}: {_more_of(private, train, test)}"
            )
    if len(train.classes) > 1 and len(set(train.labels.tolist())) < 2:
        raise BadInput(
            f"all training images of '{private.name}' are of the class {train.classes[train.labels[0]]!r}: add "
            f"images of others, or change data.share={private.share:g}"
        )


def _more_of(private: PrivateSet, train: ImageSet, test: ImageSet) -> str:
    """What brings enough images into both parts of a set."""
    ways = ["add images"]
    if len(train) + len(test) >= 2 * FEWEST_JUDGED:
        ways.append(f"change data.held_out={private.held_out:g}")
    if private.share < 1:
        ways.append(f"raise data.share={private.share:g}")
    return " or ".join(ways)


def read(private: PrivateSet, part: sources.Part) -> ImageSet:
    """The images of a part; for use inside an open door only."""
    return _grouped(private, _unnamed(private, lambda: sources.load(private.source, private.reading(part))))


def _grouped(private: PrivateSet, images: ImageSet) -> ImageSet:
    """These images of the set, of which the set says whether they have groups; `ValueError` where that is not so."""
    if (images.groups is not None) != bool(private.unit):
        raise ValueError(
            f"unit {private.unit!r} does not fit images with{'' if private.unit else 'out'} a name for their groups"
        )
    return images


@contextlib.contextmanager
def spending(
    access: Access, events: Sequence[AnyEvent], *, insecure: bool = False, settles: str = "", arithmetic: str = ""
) -> Iterator[Visit]:
    """Reserve `events` and open the door. The reservation stands in full until the stage that stores the result commits the visit's `payment`.

    Work that was `Stopped` commits the events it took, and names no artifact; images that cannot be read commit none. `settles` is the hash of the reservation under which the
    same work began and broke off: the most that it can have taken is committed first.

    For a comparison the same access is written as a look. `insecure` says that a test injected the noise, `arithmetic` how the noise
    is added; the entry states both, with the generator. A stop that cannot be written to the ledger is a warning: the
    reservation then stands in full.
    """
    files, digest = _files(access.private), identify(access.private)
    if access.comparison:
        entry = _looked(access, digest)
        images = _unchanged(access.private, files, read(access.private, "train"))
        images = images if access.canaries is None else joined(images, access.canaries)
        yield Visit(images, entry.hash, entry_label(entry))
        return
    if settles:
        access.ledger.settle(settles)
    ticket: Reservation = access.ledger.reserve(
        access.private.name,
        digest,
        events,
        access.relation,
        access.delta,
        stage=access.stage,
        purpose=access.purpose,
        run=access.run,
        code_version=access.code_version,
        images=access.images,
        parents=access.parents,
        claim=access.claim,
        reason=access.reason,
        insecure=insecure,
        noise={"generator": INJECTED if insecure else GENERATOR, "arithmetic": arithmetic} if arithmetic else None,
        following=access.following,
        unit=access.private.unit,
    )
    label = entry_label(access.ledger.opened(ticket))
    allow = functools.partial(access.ledger.progress, ticket)
    try:
        images = _unchanged(access.private, files, read(access.private, "train"))
    except BadInput:
        _commit(access.ledger, ticket, ())
        raise
    try:
        yield Visit(images, ticket.hash, label, ticket.hash, allow, Payment(ticket, tuple(events)))
    except Stopped as stop:
        _commit(access.ledger, ticket, stop.events)
        raise


@contextlib.contextmanager
def joining(access: Access, reservation: str) -> Iterator[Visit]:
    """Open the door in a further process of work whose first process has reserved under this hash and opened it; costs nothing more.

    `Refused` where that reservation is not open. In a comparison, which reserves nothing, the access is a look of its own.
    """
    files, digest = _files(access.private), identify(access.private)
    entry = _looked(access, digest) if access.comparison else access.ledger.standing_open(reservation, digest)
    images = _unchanged(access.private, files, read(access.private, "train"))
    yield Visit(images if access.canaries is None else joined(images, access.canaries), entry.hash, entry_label(entry))


def _commit(ledger: Ledger, ticket: Reservation, events: Sequence[AnyEvent]) -> None:
    try:
        ledger.commit(ticket, events)
    except BadInput as error:
        warnings.warn(f"reservation {ticket.seq} was not committed and stands in full: {error}", stacklevel=1)


@contextlib.contextmanager
def looking(access: Access, part: sources.Part) -> Iterator[Visit]:
    """Open the door for a look at a part; every result is INTERNAL."""
    files, digest = _files(access.private), identify(access.private)
    entry = _looked(access, digest)
    yield Visit(_unchanged(access.private, files, read(access.private, part)), entry.hash, entry_label(entry))


@dataclass(frozen=True)
class Inspected:
    """Result of a look through a whole set; INTERNAL."""

    inspection: sources.Inspection
    unfit: str
    """The reason why no run would begin with the set; empty where one would, or where it was not checked."""
    copied: str
    """The reason why none would begin with it and the public images, as it reads them; empty likewise."""
    entries: dict[str, str]
    """The entry of the look, with its label."""


@contextlib.contextmanager
def inspecting(
    access: Access, *, public: ImageSet | None = None, whole: bool = True, progress: Progress = silent
) -> Iterator[Inspected]:
    """Open the door for a look at all files of the set, readable or not.

    With `whole` it also checks whether a run that learns from the `public` images would begin, by the rules of `check_in`. The
    entry is written first and names no content, so that a file repaired afterwards does not count as a change of the set.
    """
    entry = _looked(access, None)
    private = access.private
    reading, unfit, copied = private.reading("all"), "", ""
    if whole:
        inspection, together = sources.inspect_together(private.source, reading, _parts(private), progress=progress)
        unfit, copied = _unfit(access, public, together)
    else:
        inspection = sources.inspect(private.source, reading, progress=progress)
    yield Inspected(inspection, unfit, copied, {entry.hash: entry_label(entry)})


def note_look(access: Access, purpose: str) -> dict[str, str]:
    """Write that work behind an open door lets out numbers without noise; returns the entry and its label."""
    entry = _looked(access, identify(access.private), purpose)
    return {entry.hash: entry_label(entry)}


def _looked(access: Access, digest: str | None, purpose: str = "", constants: Constants | None = None) -> Entry:
    return access.ledger.look(
        access.private.name,
        digest,
        purpose or access.purpose,
        stage=access.stage,
        run=access.run,
        code_version=access.code_version,
        parents=access.parents,
        constants=constants,
    )
