"""Refusals by private records alone: every way in which they can end a run, and what each end reveals.

No certificate covers whether a run was refused. Whatever public facts can decide (settings, the declared number of records and
classes, the ledger) is decided from them, before the door opens. All other refusals are listed here and printed under "What is
not covered"; a test compares the list with every refusal that the code behind the door can reach.
"""

from typing import NamedTuple


class Refusal(NamedTuple):
    """One way in which records decide alone."""

    name: str
    where: tuple[str, ...]
    """The functions that raise, or whole modules of them."""
    tells: str
    """What it reveals, as the end of a sentence."""


REFUSALS = (
    Refusal(
        "damaged files",
        (
            "sfumato.sources.chosen.narrowed",
            "sfumato.sources.dicom",
            "sfumato.sources.embedded",
            "sfumato.sources.files",
            "sfumato.sources.folders",
            "sfumato.sources.idx",
            "sfumato.sources.listing",
            "sfumato.sources.named",
            "sfumato.sources.nifti",
            "sfumato.sources.npz",
            "sfumato.sources.pictures.opened",
            "sfumato.sources.pictures.channels_of",
            "sfumato.sources.saved",
            "sfumato.sources.tables",
            "sfumato.sources.windows",
        ),
        "that an image, a row or a file of the set is damaged, missing or named twice, or of a kind that is not read",
    ),
    Refusal(
        "images of several sizes",
        (
            "sfumato.sources.pictures.check_same_shape",
            "sfumato.sources.pictures.check_same_unit",
            "sfumato.privacy.door.check_parts",
        ),
        "that two private images differ in size, channels or unit of grey, where the settings bring them to none",
    ),
    Refusal(
        "a part without images",
        ("sfumato.sources.loading.Gathering.images", "sfumato.privacy.door.check_parts"),
        "that fewer than six images lie on one side of the split, or that all of one side are of one class",
    ),
    Refusal(
        "a changed set",
        ("sfumato.privacy.ledger.balance.check_set", "sfumato.privacy.ledger.balance.check_change"),
        "that the images are not, record by record, those that the ledger knows under this name, or that it knows them under another",
    ),
    Refusal(
        "joined sets",
        (
            "sfumato.privacy.ledger.joins",
            "sfumato.privacy.ledger.ledger.Ledger.reserve",
            "sfumato.own_releases.refuse_own",
        ),
        "by a budget that is spent, or by public images or weights that were drawn from another set, that at least 1 % of the records, and five, are in "
        "that set or version, or nearly the same",
    ),
    Refusal(
        "copies among the public images",
        ("sfumato.privacy.door._refuse_copies",),
        "that a public image is a private one, pixel by pixel after cropping and resizing",
    ),
    Refusal(
        "scores that cannot be computed",
        (
            "sfumato.evaluation.classifier",
            "sfumato.evaluation.copies",
            "sfumato.evaluation.fidelity",
            "sfumato.evaluation.intervals",
            "sfumato.evaluation.membership",
            "sfumato.evaluation.scores",
            "sfumato.evaluation.utility",
        ),
        "that too few private images were there to judge or attack the result by, or that a judge trained on them diverged",
    ),
    Refusal(
        "the spot check of training",
        ("sfumato.privacy.engine.spot_check",),
        "that in one of the steps looked at, the network mixed the records of a batch",
    ),
    Refusal(
        "the copy check and the audit before publishing",
        ("artifacts.publish", "artifacts.certify"),
        "that a released image lies as near to a training record as a copy does, or that an audit refuted the certificate",
    ),
)
"""Refusals that private records alone can cause."""

REFUSING = "Whether a run is refused at all. Without noise, and outside the certificate, a refusal tells the person who runs it: "
"""The first words of the list."""


def in_words() -> str:
    """All of it in one sentence, for a page."""
    return REFUSING + "; ".join(f"{refusal.tells} ({refusal.name})" for refusal in REFUSALS) + "."
