"""Sources that need no file: scikit-learn's digits, glyphs (see `sfumato.sources.glyphs`) and shapes (`sfumato.sources.shapes`)."""

import string
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

import numpy as np

from sfumato.images import WHITE, ImageSet
from sfumato.sources.catalogue import Catalogue, Part, Reading, Record, SourceFacts

DRAWN = ("glyphs", "shapes")
"""Sources of which another seed draws other images, as many as one likes."""
BUILT_IN = ("digits", *DRAWN)
ALPHABETS = {"letters": string.ascii_letters, "digits": string.digits, "both": string.ascii_letters + string.digits}
"""The characters behind the setting `data.glyphs`."""

DIGITS_RECORDS, DIGITS_TEST, DIGITS_SIDE, DIGITS_LEVELS = 1797, 360, 8, 16
"""scikit-learn's digits: records, the fixed number held out, side in pixels, grey levels 0..16."""
GLYPHS_SIDE = 8
"""Default side of glyphs: that of the digits, whose public images they are."""
SHAPES_SIDE = 32
"""Default side of shapes."""


def open_digits(part: Part) -> Catalogue:
    """scikit-learn's bundled handwritten digits (Alpaydin and Kaynak 1998), 8x8, with a fixed stratified test part."""
    counts = {"train": DIGITS_RECORDS - DIGITS_TEST, "test": DIGITS_TEST, "all": DIGITS_RECORDS}
    facts = SourceFacts("digits", counts[part], tuple(string.digits), 1, DIGITS_SIDE, DIGITS_SIDE)

    def records() -> Iterator[Record]:
        from sklearn.datasets import load_digits  # here, since a run on other data need not wait for scikit-learn
        from sklearn.model_selection import train_test_split

        counts, labels = load_digits(return_X_y=True)
        pixels = np.round(counts * WHITE / DIGITS_LEVELS).astype(np.uint8).reshape(-1, DIGITS_SIDE, DIGITS_SIDE, 1)
        train, test = train_test_split(np.arange(len(labels)), test_size=DIGITS_TEST, stratify=labels, random_state=0)
        for i in {"train": train, "test": test, "all": np.arange(len(labels))}[part]:
            yield Record(f"digits[{i}]", pixels[i], int(labels[i]))

    return Catalogue(facts, records, has_parts=True)


def open_glyphs(reading: Reading) -> Catalogue:
    """Characters rendered from matplotlib's fonts, white on black: drawn at the requested size, not resized to it."""
    from sfumato.sources import glyphs

    size, per_class = reading.size or GLYPHS_SIDE, reading.glyphs_per_class
    characters = glyphs.LETTERS if reading.characters is None else reading.characters
    glyphs.check_request(characters, per_class, size)
    facts = SourceFacts("glyphs", per_class * len(characters), tuple(characters), 1, size, size)
    arguments = characters, per_class, size, reading.seed
    return _drawn(facts, arguments, lambda: glyphs.render_glyphs(*arguments))


def open_shapes(reading: Reading) -> Catalogue:
    """Random shapes in colour: drawn at the requested size, not resized to it."""
    from sfumato.sources import shapes

    size, per_class = reading.size or SHAPES_SIDE, reading.shapes_per_class
    shapes.check_request(per_class, size)
    names = tuple(shapes.ARRANGEMENTS)
    facts = SourceFacts("shapes", per_class * len(names), names, 3, size, size)
    arguments = per_class, size, reading.seed
    return _drawn(facts, arguments, lambda: shapes.render_shapes(*arguments))


OPENERS: Mapping[str, Callable[[Reading], Catalogue]] = MappingProxyType(
    {"digits": lambda reading: open_digits(reading.part), "glyphs": open_glyphs, "shapes": open_shapes}
)
"""What opens each source of `BUILT_IN`."""


_LAST_DRAWING: ContextVar[dict[Hashable, ImageSet] | None] = ContextVar("last drawing", default=None)
"""The drawing that the next one may be, by what it is drawn from; None outside of `drawn_once`."""


@contextmanager
def drawn_once() -> Iterator[None]:
    """Inside the block a drawing that follows one of the same source, from the same arguments, is that one; it is in memory until another is drawn, or
    the block ends."""
    token = _LAST_DRAWING.set({})
    try:
        yield
    finally:
        _LAST_DRAWING.reset(token)


def _rendered(key: Hashable, render: Callable[[], ImageSet]) -> ImageSet:
    """The images that `render` draws, or those drawn last where these have the same `key`."""
    last = _LAST_DRAWING.get()
    if last is None:
        return render()
    if key not in last:
        last.clear()  # before the next is drawn, so that both are never in memory
        last[key] = render()
    return last[key]


def _drawn(facts: SourceFacts, arguments: tuple[Hashable, ...], render: Callable[[], ImageSet]) -> Catalogue:
    """A source whose images are drawn from `arguments` when they are asked for, as many of each class, in the order of the classes."""

    def records() -> Iterator[Record]:
        images = _rendered((facts.source, *arguments), render)
        for i, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
            yield Record(f"{facts.source}[{i}]", pixels.transpose(1, 2, 0), int(label))

    def labels() -> Iterator[tuple[int, str]]:
        each = facts.records // len(facts.classes)
        return ((label, "") for label in range(len(facts.classes)) for _ in range(each))

    return Catalogue(facts, records, has_parts=False, labels=labels)
