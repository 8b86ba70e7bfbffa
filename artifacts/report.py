"""The report of a run as Markdown with its pictures beside it, in two versions.

`report.md` may leave: settings, plan, certificate beside claim, samples, public training curves, retrieval accuracy,
time. `report-internal.md` adds the scores against private images and is INTERNAL.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from artifacts.labels import Label
from artifacts.record import RunRecord, run_folder
from artifacts.store import write_text
from sfumato.evaluation.extractors import only_extractor
from sfumato.methods.plan import ANY_NUMBER, Certificate, Plan

REPORT, INTERNAL_REPORT, CURVES = "report.md", "report-internal.md", "training-curves.png"
COPIES_PICTURE = "copies.png"
SCORES = {
    "frechet": "Frechet distance",
    "coverage": "coverage",
    "readable": "readable",
    "logistic": "logistic regression",
    "cnn": "CNN",
}
"""Columns of the short score table."""
FIDELITY = {
    "frechet": "Frechet distance",
    "kid": "KID",
    "inception_score": "Inception score",
    "precision": "precision",
    "recall": "recall",
    "density": "density",
    "coverage": "coverage",
    "readable": "readable",
}
UTILITY = {
    "logistic": "logistic regression",
    "cnn": "CNN",
    "mlp": "MLP",
    "paper_cnn": "CNN of DPDM",
    "resnet9": "ResNet-9",
    "eleven": "mean of eleven",
}


def public_report(record: RunRecord, samples: str = "samples.png", curves: str = CURVES) -> str:
    """The version that may leave with the images."""
    certificate, claim = record.certificate, record.claim
    unit = unit_of(record.plan)
    lines = [
        f"# {record.method} on {record.settings['data']['name']}: {record.run}",
        "",
        f"**Label: {record.label}.** " + statement(record),
        "",
        "| | epsilon | delta | relation | source |",
        "| --- | --- | --- | --- | --- |",
        _certificate_row(certificate),
        f"| claim of the paper | {claim.epsilon:.3f} | {record.plan.privacy.delta:.3g} | | {claim.source} |",
        "",
        "A claim is what a paper's own analysis says; only the certificate is a promise.",
        "",
        f"![samples, one class a row]({samples})",
        "",
        "## What touched private images",
        "",
        table(
            ["stage", "what", "mechanism", "ledger"],
            [[spend.stage, spend.what, _event(spend.event), "paid"] for spend in record.plan.spends],
        ),
        "",
        f"Ledger entries {', '.join(map(str, record.entries))}. Unit: {unit}. {_covered(certificate)}",
        "",
        "## How it was made",
        "",
        f"{record.plan.evaluations} network evaluations per image; {_noise(record.plan)}"
        f"{_private(record.plan)} in {len(record.plan.facts.classes)} classes.",
        "",
        f"![loss of the public stages]({curves})",
        "",
    ]
    if record.latents:
        lines += [
            "## Latents",
            "",
            "Denoisers work on latents of an autoencoder that saw public images alone; what it loses, no method can bring back. "
            "Root mean squared error per pixel, on public images that it did not learn from, of its reconstructions: "
            f"{record.latents['reconstruction_error']:.3f}; of the mean image: {record.latents['spread']:.3f} (pixels from -1 to 1).",
            "",
        ]
    if record.retrieval:
        accuracy, chance = record.retrieval["retrieval_accuracy"], record.retrieval["retrieval_chance"]
        verdict = (
            "above chance" if accuracy > 2 * chance else "near chance: at this k a latent hardly tells classes apart"
        )
        recall = record.retrieval.get("search_recall", 1.0)
        search = "" if recall == 1 else f" Search is approximate: it finds the nearest key {recall:.1%} of the time."
        lines += [
            "## Retrieval",
            "",
            f"A public query finds a key of its own class {accuracy:.1%} of the time; chance is {chance:.1%} ({verdict}).{search}",
            "",
        ]
    lines += ["## Time", "", _times(record), "", "## Settings", "", _settings(record), "", not_covered(record.plan)]
    return "\n".join(lines)


NO_PROTECTION = "No protection of the training data is known."
"""Said of whatever leaves without a certificate."""
NOT_COVERED = (
    "## What is not covered\n\n"
    "Choosing settings by looking at private scores; the number of private records, the class names and the image size, which are "
    "treated as public; people with several images (the unit is one image); side channels and floating-point effects of the noise."
)
"""The edge of the promise, said wherever the promise is."""
SEVERAL = "people with several images (the unit is one image)"
"""What of it is another where the unit is a group."""


def not_covered(plan: Plan) -> str:
    """The edge of the promise of a plan."""
    unit = plan.facts.unit
    return (
        NOT_COVERED.replace(SEVERAL, f"a {unit} under several names (the unit is one {unit})") if unit else NOT_COVERED
    )


def unit_of(plan: Plan) -> str:
    """What is protected as a whole."""
    return Certificate.model_fields["unit"].default if not plan.certificate else plan.certificate.unit


def internal_report(record: RunRecord, samples: str = "samples.png", curves: str = CURVES) -> str:
    """The INTERNAL version: the public one plus the scores against private images."""
    head = (
        "> INTERNAL. The scores below were measured against private images without noise. Do not share this file.\n\n"
        "## Scores against private images\n\n" + _scores(record) + "## Copies and audit\n\n" + checks(record) + "\n\n"
    )
    return head + public_report(record, samples, curves)


def _scores(record: RunRecord) -> str:
    rows = record.metrics
    extractor = only_extractor(row["feature_extractor"] for row in rows.values() if "feature_extractor" in row)
    reasons = {f"{key}: {reason}." for row in rows.values() for key, reason in row.get("missing", {}).items()}
    how, single = record.settings["evaluation"], [row["scikit"] for row in rows.values() if row.get("scikit")]
    by_classifier = [[name, *map(_number, row["scikit"].values())] for name, row in rows.items() if row.get("scikit")]
    return (
        f"Distances and neighbourhoods (k = 5) in: {extractor or 'features not named'}. In brackets 95 % intervals "
        f"({how.get('resamples', 'no')} bootstrap resamples of the images).\n\n"
        + score_table(rows, FIDELITY)
        + "\n\nreadable: share of images that a small CNN trained on the private images reads as the wanted class.\n\n"
        + score_table(rows, UTILITY)
        + "\n\nAccuracy on held-out private images after training on the images of the row alone"
        + ("; the last column: eleven of scikit-learn's classifiers. " if "eleven" in shown(rows.values()) else ". ")
        + "No model was chosen by any of these numbers.\n\n"
        + (table(["images", *single[0]], by_classifier) + "\n\n" if single else "")
        + ("Not measured: " + " ".join(sorted(reasons)) + "\n\n" if reasons else "")
    )


def checks(record: RunRecord) -> str:
    """What the copy check and the last audit found, in a sentence each; INTERNAL."""
    copies, audit = record.copies, record.audit
    if copies is None:
        copied = "The copy check was not made."
    elif copies.passed:
        copied = "No image repeats a training record."
    else:
        copied = f"{copies.unexplained} images repeat training records ({COPIES_PICTURE})."
    if audit is None or audit.bound is None:
        return f"{copied} Not audited yet: sfumato audit {record.run}"
    found = f"canaries show an epsilon of at least {audit.bound.epsilon:.2f} ({audit.bound.confidence:.0%} confidence)"
    promised = "nothing is promised" if audit.promised is None else f"promised is {audit.promised:.2f}"
    return f"{copied} Audited: {found}; {promised}."


def score_table(metrics: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """Scores by image set, one set a row, those of `titles` that any set was asked for; refuses two extractors."""
    only_extractor(row["feature_extractor"] for row in metrics.values() if "feature_extractor" in row)
    asked = {key for row in metrics.values() for key in (*shown([row]), *row.get("missing", {}))}
    keys = [key for key in titles if key in asked]
    rows = [[name, *(score(row, key) for key in keys)] for name, row in metrics.items()]
    return table(["images", *(titles[key] for key in keys)], rows)


def shown(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the scores that any of these sets has a number for."""
    rows = list(rows)
    return [key for key in FIDELITY | UTILITY if any(row.get(key) is not None for row in rows)]


def score(row: Mapping[str, Any], key: str) -> str:
    """A score with its interval, or "-" where there is none."""
    if row.get(key) is None:
        return "-"
    low, high = row.get("intervals", {}).get(key, (None, None))
    return _number(row[key]) + (f" ({low:.3g} to {high:.3g})" if low is not None else "")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def write_reports(folder: Path, record: RunRecord) -> None:
    """Write both versions into the folder of the run."""
    write_text(folder / REPORT, public_report(record))
    write_text(folder / INTERNAL_REPORT, internal_report(record))


def markdown(record: RunRecord) -> str:
    """The report that may leave with its pictures inside, for Prefect's Markdown artifacts."""
    folder = run_folder(record)
    return public_report(record, data_uri(folder / "samples.png"), data_uri(folder / CURVES))


def draw_curves(path: Path, curves: Mapping[str, Sequence[float]]) -> None:
    """Losses of the public stages, each in its own panel."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, max(1, len(curves)), figsize=(4.2 * max(1, len(curves)), 2.8), squeeze=False)
    for panel, (name, values) in zip(panels[0], curves.items(), strict=False):
        panel.plot(values, linewidth=1.2)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("training progress", fontsize=8)
        panel.set_ylabel("loss", fontsize=8)
        panel.tick_params(labelsize=8)
        panel.set_xticks([])
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def data_uri(path: Path) -> str:
    """A picture as a data address, for Prefect's Markdown artifacts."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def statement(record: RunRecord) -> str:
    """What may be said of the images of a run: the certificate, or that there is none."""
    if record.certificate is not None:
        return record.certificate.sentence()
    if record.label == Label.PUBLIC:
        return "made from public data alone"
    if accepted := record.override("claim"):
        return (
            f"No certificate. Handed over on the paper's claim of epsilon {record.claim.epsilon:.3f} ({record.claim.source}), "
            f'for which someone answered: "{accepted.reason}" (ledger entry {accepted.entry}). What is missing: {accepted.missing}. '
            f"{NO_PROTECTION}"
        )
    why = f", because {record.plan.lacking}" if record.plan.lacking else ""
    return f"No certificate{why}: these images must not leave."


def _private(plan: Plan) -> str:
    facts = plan.facts
    return facts.private if facts.unit else f"{facts.records} private records"


def _noise(plan: Plan) -> str:
    return "" if plan.noise_multiplier is None else f"noise multiplier {plan.noise_multiplier:.3f}; "


def _certificate_row(certificate: Any) -> str:
    if certificate is None:
        return "| certificate | none | | | |"
    return (
        f"| **certificate** | **{certificate.shown_epsilon}** | {certificate.shown_delta} | {certificate.relation} | "
        f"{certificate.accountant} |"
    )


def _covered(certificate: Certificate | None) -> str:
    if certificate is None:
        return "Without a certificate nothing is covered."
    drawn = "any number of images drawn from the released model"
    return f"Covers {drawn if certificate.images == ANY_NUMBER else f'{certificate.images} images'}."


def _event(event: Any) -> str:
    return f"{event.kind} ({', '.join(f'{k}={_number(v)}' for k, v in event.model_dump(exclude={'kind'}).items())})"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _times(record: RunRecord) -> str:
    rows = [
        [stage.name, f"{stage.seconds:.1f}", "from cache" if stage.cached else "", f"{stage.made_in:.1f}"]
        for stage in record.stages
    ]
    return table(["stage", "seconds in this run", "", "seconds when made"], rows)


def _settings(record: RunRecord) -> str:
    rows = []
    for section, values in record.settings.items():
        for name, value in (values if isinstance(values, dict) else {"": values}).items():
            if section != "data" or name not in ("private", "public", "folder"):
                rows.append([f"{section}.{name}".rstrip("."), f"`{value}`"])
    return table(["setting", "value"], rows)
