"""The report of a run as one HTML file, in two versions.

`report.html` may leave where the images may: promise, pictures, epsilon at other deltas, how it was made, time, ledger entries,
settings. `report-internal.html` adds measurements against private images (scores, what privacy cost, copies and audit) and the
whole ledger of the set; it is INTERNAL. The first one also exists in Markdown, for Prefect.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from artifacts.labels import Label
from artifacts.pictures import MOST_CLASSES
from artifacts.record import RunRecord, judge_went_by_its_own, run_folder
from artifacts.references import VOTES_FOR
from artifacts.reports.audit import AUDIT_PICTURE, audit_sections
from artifacts.reports.in_short import COPIES_PICTURE, checks, in_gigabytes, statement
from artifacts.reports.officer import TITLE as OFFICER
from artifacts.reports.officer import officer_page
from artifacts.reports.page import Page, PageSection, Picture, Table, Text, in_html, in_markdown, inside, write_tables
from artifacts.reports.plain_words import plain_words
from artifacts.reports.rehearsal import REHEARSAL
from artifacts.reports.rehearsal import section as rehearsal_section
from artifacts.reports.spending import ENTRIES, PAGE, SPENDING, entry_rows
from artifacts.store import write_text
from artifacts.tracking import flattened
from sfumato.class_shares import number_of_classes
from sfumato.config import RehearsalSettings, Selection
from sfumato.evaluation.extractors import only_extractor
from sfumato.methods.plan import ANY_NUMBER, Certificate, Plan
from sfumato.privacy import refusals

REPORT, INTERNAL_REPORT = "report.html", "report-internal.html"
TABLES, INTERNAL_TABLES = "tables", "tables-internal"
"""Folders of the tables of the two reports, as CSV."""
SAMPLES, CURVES, PRIVACY, TRADE_OFF = (
    "samples.png",
    "training-curves.png",
    "privacy-curve.png",
    "trade-off-internal.png",
)
NEAREST = "nearest-public.png"
REAL_PICTURE = "real-internal.png"
PICTURES = (SAMPLES, NEAREST, CURVES, PRIVACY, REHEARSAL)
"""Pictures of the report that may leave."""
INTERNAL_FILES = (
    *(INTERNAL_REPORT, INTERNAL_TABLES, *PICTURES, TRADE_OFF, REAL_PICTURE, COPIES_PICTURE, AUDIT_PICTURE),
    *(ENTRIES, PAGE, SPENDING),
)
"""All files of both reports."""
FIDELITY = {
    "frechet": "Frechet distance",
    "kid": "KID",
    "inception_score": "Inception score",
    "precision": "precision",
    "recall": "recall",
    "density": "density",
    "coverage": "coverage",
    "frechet_backbone": "Frechet distance, backbone",
    "frechet_latents": "Frechet distance, latents",
    "frechet_train": "Frechet distance, training images",
    "two_sample_auc": "told from real",
    "readable": "readable",
}
UTILITY = {
    "logistic": "logistic regression",
    "cnn": "CNN",
    "mlp": "MLP",
    "paper_cnn": "CNN of DPDM",
    "resnet9": "ResNet-9",
    "dppm_cnn": "CNN of DPPM",
    "eleven": "mean of eleven",
}
BY_CLASS = {
    f"{name}_{key}": f"{UTILITY[name]}, {title}"
    for name in ("logistic", "cnn", "mlp", "paper_cnn", "resnet9", "dppm_cnn")
    for key, title in {"balanced": "balanced", "auc": "area under ROC"}.items()
}
"""Scores that a frequent class does not dominate, by classifier."""


SHARING = (
    "which other sets of the ledger share records with this one, found without noise: card and report name those that count together, "
    "and one record may decide"
)
EDGE = (
    "Choosing settings by looking at private scores; the number of private records, the class names and the image size, "
    f"which are treated as public; {SHARING}; people with several images (the unit is one image); side channels and rounding "
    "inside float32 sums before they are noised."
)
NOT_COVERED = PageSection("What is not covered", [Text(EDGE)])
"""The limits of the promise, shown wherever the promise is."""
SEVERAL = "people with several images (the unit is one image)"
"""The part of it that changes where the unit is a group."""
NOTICES = {
    Label.PUBLIC: "Made from public data alone: may leave.",
    Label.DP: "May leave, with the sentence below attached.",
    Label.INTERNAL: "Must not leave.",
}
HIDDEN = ("data.private", "data.public", "data.folder")
"""Settings of the data that hold paths on this machine."""
CONFIGS = ("network.config", "latent.config")
"""Whole settings of models from elsewhere, which the card holds."""
CHOICES = "recipe.choices"
"""Settings with a section of their own."""


def not_covered(plan: Plan) -> PageSection:
    """The limits of the promise of a plan."""
    unit, edge = plan.facts.unit, EDGE
    if plan.generation.classes == "declared":
        edge = f"The shares of the classes, which are declared and taken for public knowledge. {EDGE}"
    several = f"a {unit} under several names (the unit is one {unit})" if unit else SEVERAL
    weights = [Text(f"What these weights were trained on: {one.sentence()}.") for one in plan.brought]
    return NOT_COVERED._replace(blocks=[Text(edge.replace(SEVERAL, several)), *weights, Text(refusals.in_words())])


def public_page(record: RunRecord, images: str = "") -> Page:
    """The version that may leave where the images may; `images` is the digest of published ones."""
    sections = [
        officer_page(record, images=images),
        _promise(record),
        _pictures(record),
        _trade_off(record),
        _making(record),
        *([_rehearsal(record)] if record.rehearsal else []),
        *([_time(record)] if record.stages else []),
        _ledger(record),
        *_recipe(record),
        _settings(record),
        not_covered(record.plan),
    ]
    accepted = "Handed over on the paper's claim alone: no certificate." if record.override("claim") else ""
    return Page(_title(record), record.label, accepted or NOTICES[Label(record.label)], sections)


def internal_page(record: RunRecord, entries: Sequence[Mapping[str, Any]] = ()) -> Page:
    """The INTERNAL version: the public one, scores against private images, and the ledger's `entries`."""
    own = {
        "Promise": [PageSection("In plain words", [Text(sentence) for sentence in plain_words(record.metrics)])]
        * bool(record.metrics),
        "Pictures": [PageSection("Real images", [Picture(REAL_PICTURE, REAL_SHOWS)]), _scores(record)],
        "Trade-off": [PageSection("What privacy cost", [Picture(TRADE_OFF, TRADE_OFF_SHOWS)])],
        TIME: [
            PageSection("Copies and audit", _checked(record)),
            *(audit_sections(record.audit) if record.audit else ()),
        ],
        "Ledger": [PageSection("All runs on this set", _entries(entries), folded=True)] if entries else [],
    }
    inside_out = {TIME: _time(record, internal=True), OFFICER: officer_page(record, internal=True)}
    shown = [inside_out.get(part.title, part) for part in public_page(record).sections]
    sections = [part for section in shown for part in (section, *own.get(section.title, ()))]
    notice = f"Do not share: scores against private images, measured without noise. What may leave is in {REPORT}."
    return Page(_title(record), Label.INTERNAL, notice if record.label != Label.INTERNAL else INTERNAL_NOTICE, sections)


INTERNAL_NOTICE = (
    "Do not share: scores against private images, measured without noise; the images must not leave either."
)
TRADE_OFF_SHOWS = (
    "Scores of this run (filled), of earlier runs on the same images (hollow), and of what needs no privacy or none of these "
    "images (dashed), against epsilon: by certificate, or by claim where there is none (cross). INTERNAL."
)


def write_reports(folder: Path, record: RunRecord) -> None:
    """Write both versions, and their tables, into the folder of the run."""
    books = folder / ENTRIES
    entries = json.loads(books.read_text(encoding="utf-8"))["entries"] if books.is_file() else []
    public, internal = public_page(record), internal_page(record, entries)
    for page, name, tables in ((public, REPORT, TABLES), (internal, INTERNAL_REPORT, INTERNAL_TABLES)):
        write_text(folder / name, in_html(page, inside(folder)))
        write_tables(folder / tables, page)


def markdown(record: RunRecord, links: Mapping[str, str] = MappingProxyType({})) -> str:
    """The report that may leave with its pictures inside, for Prefect's Markdown artifacts; `links` stand at its head."""
    return in_markdown(public_page(record), inside(run_folder(record)), links)


def _title(record: RunRecord) -> str:
    return f"{record.method} on {record.settings['data']['name']}: {record.run}"


def _promise(record: RunRecord) -> PageSection:
    certificate, claim = record.certificate, record.claim
    promised = ["none", "", "", ""]
    if certificate:
        promised = [certificate.shown_epsilon, certificate.shown_delta, certificate.relation, certificate.accountant]
    rows = [
        ["certificate", *promised],
        ["claim of the paper", f"{claim.epsilon:.3f}", f"{record.plan.privacy.delta:.3g}", "", claim.source],
    ]
    return PageSection(
        "Promise",
        [
            Text(statement(record), f"The images are {record.label}."),
            Text(f"Unit: {record.plan.unit}. {_covered(certificate)}"),
            Table("promise", ["", "epsilon", "delta", "relation", "source"], rows),
            Text("A claim is what a paper's own analysis says; only the certificate is a promise."),
            *(Text(f"{warning}.", "Warning.") for warning in record.plan.warnings),
        ],
    )


REAL_SHOWS = "Held-out real images, one class a row as above. INTERNAL: no picture of them may leave."
NEAREST_SHOWS = (
    "Synthetic images, each left of the public image that is nearest to it in features of public images, one class a row (the first "
    "{classes}): are they public images again? No private image is in it."
)


def _pictures(record: RunRecord) -> PageSection:
    classes = record.plan.facts.classes
    rows = ", ".join(classes[:MOST_NAMES]) + (f" and {len(classes) - MOST_NAMES} more" if classes[MOST_NAMES:] else "")
    shown = Picture(SAMPLES, f"Synthetic images, one class a row, from the top: {rows}.")
    return PageSection("Pictures", [shown, Picture(NEAREST, NEAREST_SHOWS.format(classes=MOST_CLASSES))])


MOST_NAMES = 60
"""Class names that a caption lists."""


def _trade_off(record: RunRecord) -> PageSection:
    if not record.certificate:
        return PageSection("Trade-off", [Text("Without a certificate there is no epsilon to weigh anything against.")])
    shows = (
        "Epsilon that the same spends have at other deltas (line), as certified (dot), and the paper's claim (cross)."
    )
    return PageSection("Trade-off", [Picture(PRIVACY, shows)] if record.curve else [Text(NO_CURVE)])


NO_CURVE = "No epsilon at other deltas was kept."


def _making(record: RunRecord) -> PageSection:
    facts, noise = record.plan.facts, record.plan.noise_multiplier
    blocks: list[Text | Table | Picture] = [
        Text(
            f"{record.plan.evaluations_in_words} per image; ".capitalize()
            + ("" if noise is None else f"noise multiplier {noise:.3f}; ")
            + f"{facts.private} in {number_of_classes(len(facts.classes))}."
        ),
        Picture(CURVES, "Loss of the public stages."),
        *([Text(labels, "Labels.")] if (labels := labels_note(record)) else []),
        *class_blocks(record),
    ]
    if numbers := record.latents:
        sentence = (
            "Denoisers work on latents of an autoencoder that saw public images alone; no method can recover what it loses. "
            "Root mean squared error per pixel, on public images that it did not learn from, of its reconstructions: "
            f"{numbers['reconstruction_error']:.3f}; of the mean image: {numbers['spread']:.3f} (pixels from -1 to 1)."
        )
        blocks.append(Text(sentence, "Latents."))
    if numbers := record.alignment:
        shared = f"{numbers['shared_covariances']:.0f}" if numbers["shared_covariances"] else "none"
        sentence = (
            f"Noisy counts, means and covariances of {numbers['classes']:.0f} classes, which the certificate covers, map them to the public images; "
            f"drawn images are mapped back. Classes with too few records, or too much noise, for a covariance of their own: {shared}. These "
            "share one covariance."
        )
        blocks.append(Text(sentence, "Alignment."))
    if record.rates and record.plan.fine_tuning:
        blocks.append(Text(rates_sentence(record.rates, record.plan.fine_tuning.rates), "Learning rate."))
    if numbers := record.retrieval:
        blocks.append(Text(retrieval_sentence(numbers), "Retrieval."))
    return PageSection("How it was made", blocks)


def rates_sentence(numbers: Mapping[str, float], factors: Sequence[float]) -> str:
    """The learning rates that were tried, the noisy votes for each, and the winner."""
    votes = ", ".join(f"{numbers[f'{VOTES_FOR}{factor:g}']:,.0f}" for factor in factors)
    return (
        f"{len(factors)} models were trained, at {', '.join(f'{factor:g}' for factor in factors)} times the learning rates of the settings; the certificate "
        f"covers all of them, and the votes of private records, which were {votes}, with noise. The images are of the model at "
        f"{numbers['rate']:g} times."
    )


def retrieval_sentence(numbers: dict[str, float]) -> str:
    """How well retrieval tells public classes apart, and what came of it."""
    at_random = " Trajectories are taken at random, and images are drawn from there on, without the walk from T to k."
    if "retrieval_accuracy" not in numbers:
        return f"None.{at_random}"
    accuracy, chance, recall = (
        numbers["retrieval_accuracy"],
        numbers["retrieval_chance"],
        numbers.get("search_recall", 1.0),
    )
    verdict = "above chance" if accuracy > 2 * chance else "near chance: at this k a latent hardly tells classes apart"
    reference = numbers.get("retrieval_reference")
    compared = (
        ""
        if reference is None
        else f"; the likeliest class under the base's own images is right {reference:.1%} of the time"
    )
    search = "" if recall == 1 else f" Search is approximate: it finds the nearest key {recall:.1%} of the time."
    skipped = at_random if numbers.get("query_time") == 0 else ""
    return f"A public query finds a key of its own class {accuracy:.1%} of the time; chance is {chance:.1%}{compared} ({verdict}).{search}{skipped}"


def labels_note(record: RunRecord) -> str:
    """The origin of the images' labels where there is a paid judge; empty without one."""
    judge, judged = record.plan.judge, record.judged
    if judge is None:
        return ""
    paid = "a linear classifier of the private classes on public features, paid for in the certificate"
    if judge.use == "guide":
        return f"Each image has the class that it was drawn for, towards which a judge pulled it ({paid})."
    agreed = (
        f"it agreed with the class that an image was drawn for in {judged['agreed']:.1%} of {judged['drawn']:.0f}"
        if judged
        else ""
    )
    if judge.use == "relabel":
        return f"The labels are those of a judge ({paid}); {agreed}. The classes that the images were drawn for are stored too."
    if judge.use == "weigh":
        return (
            f"The labels are the likelier ones of the class that an image was drawn for and that of a judge ({paid}); {agreed}. The classes that "
            "the images were drawn for are stored too."
        )
    if judge_went_by_its_own(record):
        return (
            f"The labels are those of a judge ({paid}), which kept the surest of each class; {agreed}, next to nothing. The classes that the images "
            "were drawn for are stored too."
        )
    return f"Each image has the class that it was drawn for; a judge ({paid}) kept the surest of each class; {agreed}."


def _rehearsal(record: RunRecord) -> PageSection:
    assert record.rehearsal  # the caller has seen it
    wanted = RehearsalSettings.model_validate(record.settings.get("rehearsal", {}))
    chosen = Selection.model_validate(record.settings.get("selection", {})).takes_votes
    return rehearsal_section(record.rehearsal, wanted, chosen=chosen, failed=went_on(record))


def went_on(record: RunRecord) -> str:
    """The failures of the rehearsal, and the person's reason for going on; empty where it passed."""
    accepted = record.override("rehearsal")
    return f"{accepted.missing}. {accepted.reason} (ledger entry {accepted.entry})." if accepted else ""


def class_blocks(record: RunRecord) -> list[Text | Table | Picture]:
    """The shares of the classes and their source; nothing where every class has equally many images."""
    shares = record.class_shares
    if shares is None:
        return []
    head = ["class", "share", "images", *(["private records, with noise"] if shares.counts else [])]
    return [
        Text(shares.source, "Shares of the classes."),
        Table("classes", head, shares.rows(record.plan.generation.images)),
    ]


TIME = "Time"
"""Title of the section on how long stages took."""


def _time(record: RunRecord, *, internal: bool = False) -> PageSection:
    """Time of each stage; that of stages with an INTERNAL result is in the INTERNAL version alone, since it depends on private images, and so does
    memory, of which INTERNAL stages leave some to others."""
    timed = [stage for stage in record.stages if internal or stage.label in (Label.PUBLIC, Label.DP)]
    left = "" if internal else " The time of the others depends on private images without noise, and is not shown here."
    head, rows = (
        ["stage", "seconds in this run", "cache", "seconds when made"],
        [
            [stage.name, f"{stage.seconds:.1f}", "from cache" if stage.cached else "", f"{stage.made_in:.1f}"]
            for stage in timed
        ],
    )
    if internal:
        head.append("memory when made (GB)")
        rows = [[*row, in_gigabytes(stage.memory, stage.gpu_memory)] for row, stage in zip(rows, timed, strict=True)]
    total = Text(
        f"{len(timed)} of {len(record.stages)} stages, in {sum(stage.seconds for stage in timed):.0f} seconds.{left}"
    )
    return PageSection(TIME, [total, Table("time", head, rows)])


def _ledger(record: RunRecord) -> PageSection:
    rows = [[spend.stage, spend.what, _event(spend.event), "paid"] for spend in record.plan.spends]
    return PageSection(
        "Ledger",
        [
            Text("What touched private images:"),
            Table("ledger", ["stage", "what", "mechanism", "ledger"], rows),
            Text(f"Ledger entries {', '.join(map(str, record.entries))}."),
        ],
    )


def _entries(entries: Sequence[Mapping[str, Any]]) -> list[Text | Table | Picture]:
    listed = [entry for entry in entries if entry["kind"] != "progress"]
    return [
        Picture(SPENDING, "What the set has cost, spend by spend."),
        Text(f"{len(entries) - len(listed)} notes of progress are left out; {ENTRIES} holds every entry."),
        Table("entries", *entry_rows(listed)),
    ]


def _recipe(record: RunRecord) -> list[PageSection]:
    """The choices of the recipe and their reasons; nothing where a preset or a person chose."""
    recipe = record.settings.get("recipe", {})
    if not recipe.get("choices"):
        return []
    origin = f"Chosen from declared facts for {recipe['minutes']:g} minutes on a {recipe['device'].upper()}; no image was looked at."
    rows = [[choice["setting"], choice["value"], choice["why"]] for choice in recipe["choices"]]
    return [PageSection("Recipe", [Text(origin), Table("recipe", ["setting", "value", "why"], rows)], folded=True)]


def _settings(record: RunRecord) -> PageSection:
    rows = [
        [name, value] for name, value in flattened(record.settings).items() if name not in (*HIDDEN, *CONFIGS, CHOICES)
    ]
    return PageSection("Settings", [Table("settings", ["setting", "value"], rows)], folded=True)


def _scores(record: RunRecord) -> PageSection:
    rows = record.metrics
    extractor = only_extractor(row["feature_extractor"] for row in rows.values() if "feature_extractor" in row)
    reasons = {f"{key}: {reason}." for row in rows.values() for key, reason in row.get("missing", {}).items()}
    how, single = record.settings["evaluation"], [row["scikit"] for row in rows.values() if row.get("scikit")]
    by_classifier = [[name, *map(_number, row["scikit"].values())] for name, row in rows.items() if row.get("scikit")]
    eleven = "; the last column: eleven of scikit-learn's classifiers. " if "eleven" in shown(rows.values()) else ". "
    blocks: list[Text | Table | Picture] = [
        Text(
            f"Distances and neighbourhoods (k = 5) in: {extractor or 'features not named'}. In brackets 95 % intervals "
            f"({how.get('resamples', 'no')} bootstrap resamples of the images)."
        ),
        score_table(rows, "fidelity", FIDELITY),
        *_explained(rows),
        Text("readable: share of images that a small CNN trained on the private images reads as the wanted class."),
        score_table(rows, "utility", UTILITY),
        *([score_table(rows, "by-class", BY_CLASS)] if set(shown(rows.values())) & set(BY_CLASS) else []),
        Text(
            f"Accuracy on held-out private images after training on the images of the row alone{eleven}No model was chosen by any of these numbers."
        ),
    ]
    if single:
        blocks.append(Table("classifiers", ["images", *single[0]], by_classifier))
    if reasons:
        blocks.append(Text("Not measured: " + " ".join(sorted(reasons))))
    return PageSection("Scores against private images", blocks)


def _explained(rows: Mapping[str, Mapping[str, Any]]) -> list[Text]:
    """Explanations of the further distances and of the column `told from real`, where there are any."""
    extractors = {name for row in rows.values() for name in row.get("further_extractors", {}).items()}
    sentences = [f"{FIDELITY[key]}: in the {name}." for key, name in sorted(extractors)]
    if any(row.get("two_sample_auc") is not None for row in rows.values()):
        sentences.append(
            "told from real: how often a small CNN, trained on one half of the images, tells the synthetic one of a synthetic and a held-out "
            "real image, on the other half (area under ROC; .5 is guessing, 1 is always)."
        )
    return [Text(" ".join(sentences))] if sentences else []


def _checked(record: RunRecord) -> list[Text | Picture]:
    return [Text(checks(record)), Picture(COPIES_PICTURE, "The closest pairs: a synthetic image beside a record.")]


def score_table(metrics: Mapping[str, Mapping[str, Any]], name: str, titles: Mapping[str, str]) -> Table:
    """Scores by image set, one set a row, with the columns of `titles` that any set has; refuses two extractors."""
    only_extractor(row["feature_extractor"] for row in metrics.values() if "feature_extractor" in row)
    requested = {key for row in metrics.values() for key in (*shown([row]), *row.get("missing", {}))}
    keys = [key for key in titles if key in requested]
    scored = {
        images: row
        for images, row in metrics.items()
        if any(key in row.get("missing", {}) or row.get(key) is not None for key in keys)
    }
    rows = [[images, *(score(row, key) for key in keys)] for images, row in scored.items()]
    return Table(name, ["images", *(titles[key] for key in keys)], rows)


def shown(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the scores for which any of these sets has a number."""
    rows = list(rows)
    return [key for key in FIDELITY | UTILITY | BY_CLASS if any(row.get(key) is not None for row in rows)]


def score(row: Mapping[str, Any], key: str) -> str:
    """A score with its interval, or "-" where there is none."""
    if row.get(key) is None:
        return "-"
    low, high = row.get("intervals", {}).get(key, (None, None))
    return _number(row[key]) + (f" ({low:.3g} to {high:.3g})" if low is not None else "")


def _covered(certificate: Certificate | None) -> str:
    if certificate is None:
        return "Without a certificate nothing is covered."
    drawn = "any number of images drawn from the released model"
    return f"Covers {drawn if certificate.images == ANY_NUMBER else f'{certificate.images} images'}."


def _event(event: Any) -> str:
    return f"{event.kind} ({', '.join(f'{k}={_number(v)}' for k, v in event.model_dump(exclude={'kind'}).items())})"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
