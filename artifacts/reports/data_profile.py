"""The profile of a private collection as a page in Markdown; INTERNAL, as its first line says."""

from artifacts.reports.page import table
from sfumato.class_shares import number_of_classes
from sfumato.privacy.auditing.data_profile import SHOWN, Alike, DataProfile
from sfumato.sources import BURNED_IN

FIRST_LINE = "**INTERNAL**: made by looking at private images without noise. Do not share this sheet."
KINDS = 12
"""Sizes and modes that are named."""


def profile_page(profile: DataProfile) -> str:
    """The page for a person who wants to know whether these images can be used."""
    kinds = list(profile.kinds.items())
    rest = sum(count for _, count in kinds[KINDS:])
    shown = [*kinds[:KINDS], *([(f"{len(kinds) - KINDS} others", rest)] if rest else [])]
    units = "" if profile.groups is None else f", in {profile.groups} groups of at most {profile.largest_group}"
    lines = [
        FIRST_LINE,
        "",
        f"# Data sheet of {_word(profile.name)}",
        "",
        f"{profile.records} images in {number_of_classes(len(profile.classes))}{units}; {len(profile.broken)} that cannot be read.",
        "",
        table(["class", "images"], [[_word(name), count] for name, count in profile.classes.items()]),
        "",
        table(["size and mode", "images"], shown),
        "",
        *_text_in_pictures(kinds),
        "## Alike",
        "",
        *_similar_pairs("Pairs of images", "the same, pixel by pixel", profile.duplicates),
        *_similar_pairs("Pairs of images", "nearly the same", profile.near),
    ]
    if profile.public:
        pairs = f"Pairs of an image and a public one of {_word(profile.public)}"
        lines += [
            *_similar_pairs(pairs, "the same, pixel by pixel", profile.copies, "public image"),
            *_similar_pairs(pairs, "nearly the same", profile.near_public, "public image"),
        ]
    lines += ["## Cannot be read", "", *(f"- {_word(line)}" for line in profile.broken or ("nothing",)), ""]
    if profile.refused:
        lines += ["## Why no run would begin", "", _word(profile.refused), ""]
    return "\n".join(lines)


def _similar_pairs(pairs: str, how: str, alike: Alike, title: str = "other image") -> list[str]:
    crossing = {"groups": alike.across_groups, "classes": alike.across_classes}
    which = ", ".join(f"{count} across {what}" for what, count in crossing.items() if count)
    few = f"; the closest {SHOWN} are named" if alike.pairs > SHOWN else ""
    rows = [[_word(one), _word(other)] for one, other in alike.named]
    named = [table(["image", title], rows), ""] if rows else []
    return [f"{pairs} that are {how}: {alike.pairs}{f' ({which})' if which else ''}{few}.", "", *named]


def _text_in_pictures(kinds: list[tuple[str, int]]) -> list[str]:
    burned = sum(count for kind, count in kinds if kind.endswith(BURNED_IN))
    if not burned:
        return []
    text = f"**Text is burned into {burned} images**, their headers say: it is learnt like everything else. Cover it, or take them out."
    return [text, ""]


def _word(text: str) -> str:
    """Text from outside in one line, escaped for Markdown."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text).replace("`", "'")
    return f"`{plain}`"
