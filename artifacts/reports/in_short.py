"""A run in a few lines: the statement on its images, its short scores, and the results of the copy check and the last audit.

A file of its own, so that a screen which shows a run loads no library that draws or measures.
"""

from artifacts.labels import Label
from artifacts.record import RunRecord, judge_went_by_its_own
from sfumato.privacy.auditing.findings import Audit

COPIES_PICTURE = "copies.png"
SCORES = {
    "frechet": "Frechet distance",
    "coverage": "coverage",
    "two_sample_auc": "told from real",
    "readable": "readable",
    "logistic": "logistic regression",
    "cnn": "CNN",
}
"""Columns of the short score table."""
LESS_IS_BETTER = ("frechet", "two_sample_auc")
"""Scores of which less is better; of the others, more is."""
DOUBTFUL = 1 / 3
"""Part of the way from chance to agreement on every image, below which a paid judge's word speaks against what was drawn: so it was of five kinds of
photographs without details (.3 of the way) and of illegible digits at epsilon .2 (.3); legible digits lay at .7 and above."""
POOR = "Look at the picture; what may help: docs/questions.md#why-are-my-images-noise"
"""What a screen says after such doubts."""
NO_PROTECTION = "No protection of the training data is known."
"""The statement on images that leave without a certificate."""
NOTHING_CERTIFIED = "This run has no certificate, so that there is nothing that an audit could refute"
"""The verdict of an audit on a run whose access to private images cannot be certified."""


def statement(record: RunRecord) -> str:
    """The statement on the images of a run: the certificate, or its absence."""
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


def doubts(record: RunRecord) -> str:
    """What a paid judge's word says against the images, a sentence without its stop; empty where it agrees with most, or there is none.

    May be shown: the judge was paid for, and sees what was drawn alone.
    """
    chance = 1 / len(record.plan.facts.classes)
    agreed = record.judged.get("agreed", 1.0)
    if agreed >= chance + DOUBTFUL * (1 - chance):
        return ""
    doubt = f"the classes may be hard to see: the paid judge finds the own one of {agreed:.0%} of what was drawn, and chance is {chance:.0%}"
    return f"{doubt}; the labels are therefore the judge's" if judge_went_by_its_own(record) else doubt


def checks(record: RunRecord) -> str:
    """Results of the copy check and of the last audit, in a sentence each; INTERNAL."""
    copies, audit = record.copies, record.audit
    if copies is None:
        copied = "The copy check was not made."
    elif copies.passed:
        copied = "No image repeats a training record."
    else:
        copied = f"{copies.unexplained} images repeat training records ({COPIES_PICTURE})."
    if audit is None:
        vain = (
            "" if record.plan.certificate else " It has no certificate that an audit could refute, but can be attacked."
        )
        return f"{copied} Not audited yet: sfumato audit {record.run}{vain}"
    return f"{copied} Audited: {audit_note(audit)}"


def in_gigabytes(memory: float, gpu_memory: float) -> str:
    """The largest memory (GB) of a process, and of a GPU where it used one; empty where it was not measured. INTERNAL."""
    return (f"{memory:.2f}" + (f", GPU {gpu_memory:.2f}" if gpu_memory else "")) if memory else ""


def audit_note(audit: Audit) -> str:
    """The results of games and guesses, and what they could refute, in a sentence or two; for the report of the run."""
    if audit.reason:
        return f"REFUTED, {audit.reason}."
    if audit.certificate is None:
        return f"{NOTHING_CERTIFIED[0].lower()}{NOTHING_CERTIFIED[1:]}; its membership attacks are below."
    sentences = [
        f"no fault in {fit.what}: an epsilon of {fit.epsilon:.2f} at least is seen where {fit.priced:.2f} is priced"
        for fit in audit.fits
    ]
    if audit.bound:
        weak = "" if audit.bound.attainable >= audit.certificate else ", and could not have refuted it"
        sentences.append(
            f"guesses show an epsilon of at least {audit.bound.epsilon:.2f} ({audit.bound.confidence:.0%} confidence){weak}"
        )
    return f"{'; '.join(sentences) or 'attacks alone'}; certified is {audit.certificate:.2f}."
