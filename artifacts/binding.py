"""Checks that the ledger vouches for an artifact: the ledger holds the entries that it stands on, and they name it.

A manifest names its entries by hash, which nobody can foresee; a spend is committed with the address of the artifact made under
it, and an artifact made from such artifacts alone is written to the ledger under its own address. A person who can write to the
store but not to the ledger can therefore replace nothing that was paid for. An artifact that is not bound counts as missing, and
is made again.

A crash between storing an artifact and its commit leaves one that no entry names: its reservation stands in full, and it is not
used, since nothing shows that it is all that was done. The same holds for artifacts of earlier homes, whose manifests give
numbers. Not covered: artifacts without a ledger entry (public data and artifacts made from it alone).
"""

from collections.abc import Iterable, Sequence

from artifacts.labels import Label
from artifacts.references import Ref
from artifacts.store import Damaged, Store
from sfumato.privacy.ledger.ledger import Entry, entry_label


def unbound(store: Store, known: Sequence[Entry], artifact: Ref | str) -> str:
    """The reason why an artifact, or one of its ancestors, counts as missing; empty where it may be used.

    `known` are all entries of the ledger.
    """
    try:
        family = store.ancestry(artifact)
    except Damaged:
        return "an artifact that it was made from is missing or damaged"
    label = store.label_of(artifact)
    labels = {family[0][1]["label"], artifact.label if isinstance(artifact, Ref) else label}
    reasons = (_unbound(digest, manifest, store.label_of(digest), known) for digest, manifest in family)
    return next(filter(None, reasons), "" if labels == {label} else "its label is not that of its ledger entries")


def touches(store: Store, artifact: Ref | str) -> bool:
    """Whether ledger entries went into an artifact; False where that is unknown."""
    try:
        return bool(store.entries(artifact))
    except Damaged:
        return False


def named_by(known: Iterable[Entry], kind: str, artifact: str) -> list[Entry]:
    """The entries of a kind that name an artifact, in order."""
    return [entry for entry in known if entry.kind == kind and entry.body.get("artifact") == artifact]


def _unbound(digest: str, manifest: dict, label: Label, known: Sequence[Entry]) -> str:
    """The fault in one artifact's own entries; `label` is the combined one of it and all its ancestors."""
    named = {entry.hash: entry for entry in known if entry.hash in manifest["entries"]}
    if set(manifest["entries"]) - set(named):
        return "its ledger entries are not in this ledger"
    for name, entry in named.items():
        if entry.kind not in ("reserve", "look") or entry_label(entry) != manifest["entries"][name]:
            return f"ledger entry {entry.seq} is not what it says"
    spends = {entry.seq for entry in named.values() if entry.kind == "reserve"}
    if not spends:
        derived = label == Label.DP and not named_by(known, "made", digest)
        return "no ledger entry names it" if derived else ""
    # Resumed work also stands on earlier spends, whose commits name no artifact; one commit that names it is enough, since its
    # address covers all the others.
    if any(entry.body["reserve"] in spends for entry in named_by(known, "commit", digest)):
        return ""
    return f"ledger entry {min(spends)} was not committed with it"
