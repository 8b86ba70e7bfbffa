"""The card of a published folder: everything that a stranger needs to check its promise, signed as a whole.

Beside it lie the entry for OpenDP's registry of deployments (tier 3), and the script that checks the card, which a careful reader
takes from a release instead.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from artifacts.record import UNTOLD, RunRecord
from artifacts.references import PublicImages
from artifacts.reports.in_short import statement
from artifacts.reports.run import SHARING, labels_note
from artifacts.store import Store
from sfumato import __version__, verify_card
from sfumato.class_shares import number_of_classes
from sfumato.config import Relation
from sfumato.image_folder import BEHIND, OF_SET
from sfumato.images import ImageSet
from sfumato.privacy.accounting.accountant import epsilon
from sfumato.privacy.accounting.events import Event
from sfumato.privacy.ledger.evidence import mechanisms_of
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.refusals import REFUSALS
from sfumato.released import CARD

REGISTRY, CHECKER = "registry.yaml", "verify_card.py"
OF_ENTRIES = ("generator", "arithmetic", "code_version")
"""Fields of the entries that describe how a mechanism was carried out."""
TUNING = "settings chosen by looking at scores against private images are not accounted for"
FORMAL = "Formal publication by the deploying organization"
"""The registry's name for evidence of this kind."""
TO_FILL_IN = "Not told by the program: write it here before handing this in."


@dataclass(frozen=True)
class Evidence:
    """Facts about a release from store and ledger, for its card, and the ledger's signature."""

    facts: Mapping[str, Any]
    sign: Callable[[Mapping[str, Any]], Mapping[str, Any]]


def evidence_of(store: Store, ledger: Ledger, record: RunRecord) -> Evidence:
    """Mechanisms, generator, arithmetic, versions, public data and the head of the ledger, of the samples of a run."""
    under = set(store.entries(record.samples_artifact))
    entries = [e for e in ledger.entries() if e.kind == "reserve" and e.hash in under]
    certificate = record.certificate
    events = ledger.events_under(sorted(under)) if certificate else ()
    ancestry = store.ancestry(record.samples_artifact)
    facts = {
        "mechanisms": mechanisms_of(events, certificate.relation) if certificate else [],
        "noise": [
            {"stage": e.body["stage"], **{name: e.body[name] for name in OF_ENTRIES if name in e.body}} for e in entries
        ],
        "public_data": sorted(digest for digest, m in ancestry if m["kind"] == PublicImages.__name__),
        "ledger_spends": ledger.spends_under(under),
        "in_all": in_all(ledger, record.settings["data"]["name"]),
        "ledger_notes": ledger.notes(record.settings["data"]["name"]),
        "head": dict(ledger.signed_head()),
    }
    return Evidence(facts, ledger.sign)


def in_all(ledger: Ledger, dataset: str) -> dict[str, Any]:
    """The cost of a set and all sets joined to it, with the time of the last entry counted, and the joins and partings."""
    total = ledger.total(dataset)
    return {
        "sets": [dataset, *ledger.joined(dataset)],
        "epsilon": total.epsilon if math.isfinite(total.epsilon) else None,
        "delta": total.delta,
        "relation": total.relation,
        "spends": total.spends,
        "as_of": max((entry.body["time"] for entry in ledger.entries()), default=""),
        "said": [
            {"kind": e.kind, "sets": [e.dataset, e.body["other"]], "reason": e.body["reason"], "time": e.body["time"]}
            for e in ledger.join_history(dataset)
            if "reason" in e.body
        ],
    }


def slow_price(events: Sequence[Event], delta: float, relation: Relation) -> float:
    """The price of events by dp-accounting alone, as the script that checks cards computes it; ours sets the first grid only."""
    about = epsilon(events, delta, relation)
    return verify_card.upper_bound(mechanisms_of(events, relation), delta, about) if 0 < about < math.inf else about


def card_of(
    record: RunRecord, images: ImageSet, evidence: Evidence | None, model: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """All fields of the card but the digests of files and the signature; `model` lists the parts of the model, or says why there is none."""
    facts = record.plan.facts
    return {
        "name": f"{record.settings['data']['name']}{OF_SET}",
        "run": record.run,
        "method": record.method,
        "label": record.label,
        "statement": statement(record),
        "certificate": record.certificate.model_dump(mode="json") if record.certificate else None,
        "unit": record.plan.unit,
        "curve": [list(point) for point in record.curve],
        "unprotected": {
            "records": facts.records,
            "classes": list(facts.classes),
            "shape": list(facts.shape),
            "sets": SHARING,
            "tuning": TUNING,
        },
        "gates": [{"name": refusal.name, "tells": refusal.tells} for refusal in REFUSALS],
        **(evidence.facts if evidence else {}),
        "claim": record.claim.model_dump(mode="json"),
        "warnings": list(record.plan.warnings),
        **({BEHIND: list(record.plan.sets_behind)} if record.plan.sets_behind else {}),
        **({"public_models": [one.model_dump() for one in brought]} if (brought := record.plan.brought) else {}),
        "rehearsal": record.rehearsal.numbers() if record.rehearsal else None,
        "overrides": [override.model_dump(mode="json") for override in record.overrides],
        "spends": [spend.model_dump(mode="json") for spend in record.plan.spends],
        "ledger_entries": record.entries,
        "images": len(images),
        "classes": list(images.classes),
        "class_shares": record.class_shares.model_dump(mode="json") if record.class_shares else None,
        **({"labels": labels} if (labels := labels_note(record)) else {}),
        "shape": list(images.pixels.shape[1:]),
        **({"model": dict(model)} if model else {}),
        "settings": {k: v for k, v in record.settings.items() if k not in (*UNTOLD, "release")},
        "code_version": __version__,
    }


def add_evidence(folder: Path, card: Mapping[str, Any]) -> None:
    """Write the entry for the registry, and the script that checks the card."""
    (folder / REGISTRY).write_text(yaml.safe_dump(registry_entry(card), sort_keys=False, width=100), encoding="utf-8")
    shutil.copyfile(verify_card.__file__, folder / CHECKER)


def seal(folder: Path, card: Mapping[str, Any], evidence: Evidence | None) -> None:
    """Write the card with the digests of all other files of the folder, signed; nothing may change in it afterwards."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    whole: Mapping[str, Any] = {**card, "files": digests}
    (folder / CARD).write_text(json.dumps(evidence.sign(whole) if evidence else whole, indent=1), encoding="utf-8")


def registry_entry(card: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of tier 3 of the differential privacy deployments registry, as far as the program knows them."""
    certificate, unprotected = card["certificate"] or {}, card["unprotected"]
    exchanged = certificate.get("relation") == "replace_one"
    mechanisms = [f"- {json.dumps(one, sort_keys=True)}" for one in card.get("mechanisms", [])]
    noise = [f"- {json.dumps(one, sort_keys=True)}" for one in card.get("noise", [])]
    return {
        "url_slug": card["name"],
        "deployment": {
            "basic": {
                "name": card["name"],
                "data_curators": [
                    {"data_curator_name": card.get("curator") or TO_FILL_IN, "data_curator_type": TO_FILL_IN}
                ],
                "description": f"{card['images']} synthetic images in {number_of_classes(len(card['classes']))}, drawn by {card['method']}.",
                "intended_use": card.get("purpose") or TO_FILL_IN,
                "data_product_type": "Synthetic data",
                "data_product_region": TO_FILL_IN,
                "data_product_sector": TO_FILL_IN,
                "publication_date": card.get("date") or TO_FILL_IN,
            },
            "dp_variant": {
                "variant_name": "Approximate DP" if certificate else "No certificate",
                "data_domain": f"Collections of images with labels, {'x'.join(map(str, unprotected['shape']))} values each "
                f"after cropping and resizing, in {number_of_classes(len(unprotected['classes']))}.",
                "unprotected_quantities": f"Number of records ({unprotected['records']}); names of the classes; size of the "
                f"images; {unprotected['sets']}; {unprotected['tuning']}.",
            },
            "privacy_loss": {
                "privacy_unit": card["unit"],
                "privacy_unit_details": "Neighbours differ by one of these "
                + ("exchanged for another (replace_one)." if exchanged else "added or removed (add_remove)."),
                "privacy_parameters": {name: certificate[name] for name in ("epsilon", "delta") if name in certificate},
                "privacy_parameters_details": card["statement"],
            },
            "deployment_model": {
                "model_name": "Central",
                "actors": "Whoever runs the program sees all images; whoever gets the folder is not trusted.",
                "release_type": "One release",
                "release_type_details": f"Entries {', '.join(map(str, card['ledger_entries']))} of a ledger that counts every release.",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": f"Images are cropped and resized one by one; {unprotected['tuning']}.",
                "mechanisms": "\n".join(
                    [f"Sfumato {card['code_version']}. Constructors of dp-accounting:", *mechanisms]
                )
                + "".join(f"\n{one}" for one in (["How they were carried out:", *noise] if noise else [])),
                "composition": f"All mechanisms together, by {certificate.get('accountant', 'nobody')}.",
                "post_processing": "What the noised outputs are used for: training, drawing and choosing images.",
                "justification": TO_FILL_IN,
            },
            "administrative": {
                "evidence_sources": {"card": {"evidence_source_type": FORMAL, "misc": {"title": CARD}}},
                "status": "Draft",
                "registry_authors": [TO_FILL_IN],
                "tier": 3,
            },
        },
    }
