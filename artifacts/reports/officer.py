"""The first page of a report, for the person who decides whether something leaves: one sheet of paper, in plain words.

The version that may leave holds no result of a look without noise: of looks it gives the number, of an audit where to read it.
"""

import math
from collections.abc import Sequence

from artifacts.books import Accesses, Books, Kind
from artifacts.labels import Label
from artifacts.record import RunRecord
from artifacts.reports.in_short import audit_note, statement
from artifacts.reports.odds import best_guess, best_guess_by, percent, rounded_down, rounded_up
from artifacts.reports.page import Blanks, PageSection, Picture, Table, Text
from sfumato import __version__
from sfumato.class_shares import number_of_classes
from sfumato.methods.plan import ANY_NUMBER, Certificate

TITLE = "For the person who decides"
FURTHER = "What is not covered"
"""Title of the section that holds the limits in full."""
SIGNED = ("Decision and reason", "Name and office", "Date", "Signature")
STAGES = {
    "check": "first check of the files",
    "class_counts": "number of records of each class",
    "votes": "votes for public classes",
    "selection": "votes for public images to learn from",
    "moments": "means and spreads of the classes",
    "central": "noisy means of each class",
    "embedding": "noisy mean features of each class",
    "matching": "noisy mean features of each class, for drawn images",
    "phase_one": "training, first phase",
    "fine_tuning": "fine-tuning of the model",
    "training": "training of the model",
    "drawing": "drawing of images",
    "judge": "training of a judge of labels",
    "rates": "votes for a learning rate",
    "evaluation": "comparison with real images",
    "copies": "search for copies",
    "audit": "audit: attacks on the result",
}
"""Stages in words."""
OUTCOMES: dict[Kind, str] = {
    "paid": "noise added; in the price",
    "uncertified": "no certificate covers it",
    "look": "no noise; result stays inside",
}
MOST_ROWS = 9
"""Rows of accesses for which there is room on the sheet."""
MEANING = (
    "Epsilon: whether a record is used changes the chance of any outcome by at most the factor e^epsilon (e = 2.718). Delta: a small "
    "allowance on top of it. Accountant: the program that adds up what all noisy readings cost, by the method of its name (PLD or RDP). Ledger: the list of every access "
    "to the set, in which nothing can be changed unseen."
)
AUDIT_ELSEWHERE = (
    "An audit attacks a finished run to find faults. It looks at private images without noise, so its result stays inside: it is on "
    "the first page of the other report, which does not leave."
)


def officer_page(record: RunRecord, *, images: str = "", internal: bool = False) -> PageSection:
    """The sheet; `images` is the digest of published images, `internal` adds the result of the last audit."""
    books = record.books
    return PageSection(
        TITLE,
        [
            Text(_done(record), "What was done."),
            *_meaning(record),
            Text(_attacks(record) if internal else AUDIT_ELSEWHERE, "Attacks that were measured."),
            Text(_promises(record), "Certificate and claim."),
            Text(_unit(record), "Who is protected, and who is not.", FURTHER),
            *([_accesses(books.accesses), Text(_set(record, books), "The set so far.")] if books else [Text(NO_BOOKS)]),
            Table("facts", ["for the file", GLOSS], _facts(record, books, images)),
            *(Text(f"It was {one.in_words()}.", "Decision.") for one in record.decisions[-1:]),
            Blanks(SIGNED),
        ],
        sheet=True,
    )


GLOSS = "a digest is a fingerprint of content; a commit names a state of the code"
NO_BOOKS = "A record of an earlier version: the accesses to the set, and what all versions cost, are told by sfumato ledger show."


def _done(record: RunRecord) -> str:
    """Three sentences: learning, drawing, and whether the images may leave."""
    facts, images = record.plan.facts, record.plan.generation.images
    if record.certificate:
        noise = "adding random noise to all that it took from them"
    elif math.isinf(record.claim.epsilon):
        noise = "without any noise"
    else:
        noise = "with noise that no certificate covers"
    if record.label == Label.DP:
        end = "What was drawn may leave, with the statement below attached."
    elif record.override("claim"):
        end = "There is no certificate; a person let it leave on the claim of a paper."
    elif record.label == Label.PUBLIC:
        end = "No private image went into it, so it may leave."
    else:
        end = "What was drawn must not leave."
    return (
        f"The method {record.method} learnt from the private set '{record.settings['data']['name']}' ({facts.private} in "
        f"{number_of_classes(len(facts.classes))}), {noise}. From what it had learnt it drew {images} new images, called synthetic; the private "
        f"images stay where they are. {end}"
    )


def _meaning(record: RunRecord) -> Sequence[Text | Table | Picture]:
    certificate = record.certificate
    if certificate is None:
        without = "Nothing limits what an attacker can learn about any one record: at even odds a guess may be right all of the time."
        return [Text(without, "What it means that there is no certificate."), Text(statement(record), "In full.")]
    return [Text(_odds(record, certificate), "What the certificate means."), Text(_formula(record), "In full.")]


def _formula(record: RunRecord) -> str:
    return f"{statement(record)} {MEANING}"


def _odds(record: RunRecord, certificate: Certificate) -> str:
    alone, curve = best_guess_by(certificate.epsilon, certificate.delta), record.at_zero
    coin = (
        f"whether {certificate.unit} was used"
        if certificate.relation == "add_remove"
        else f"which of two was used ({certificate.unit})"
    )
    guess = alone if curve is None else min(alone, best_guess(curve.delta))
    source = (
        "This follows from epsilon and delta alone; the run's own privacy curve would say less, but was not kept."
        if curve is None
        else f"This is (1 + delta(0)) / 2, where delta(0) = {math.ceil(curve.delta * 1e4) / 1e4:.4f} is the delta of this run's own privacy "
        f"curve at epsilon 0, rounded up, by {curve.accountant}; epsilon alone would say {percent(alone, up=False)}."
    )
    return (
        f"Let an attacker know every other record and all that leaves, and let a fair coin decide {coin}. The best guess at the coin is right "
        f"at most {percent(guess)} of the time; without anything that leaves it is right 50 % of the time. {source}"
    )


def _attacks(record: RunRecord) -> str:
    audit = record.audit
    if audit is None:
        return f"None yet: sfumato audit {record.run} attacks the run to find faults."
    bound = audit.bound
    guesses = (
        f"Of {bound.guesses} guesses whether a test record had been used {bound.correct} were right. " if bound else ""
    )
    return f"{guesses}{audit_note(audit)[:1].upper()}{audit_note(audit)[1:]}"


def _promises(record: RunRecord) -> str:
    certificate, claim = record.certificate, record.claim
    own = (
        f"The certificate, epsilon {certificate.shown_epsilon} at delta {certificate.shown_delta}, is computed from what the program "
        f"did, and holds for {'any number of images' if certificate.images == ANY_NUMBER else f'{certificate.images} images'} drawn."
        if certificate
        else "There is no certificate."
    )
    if math.isinf(claim.epsilon):
        return f"{own} No paper claims privacy for a run without noise."
    return f"{own} The method's paper claims epsilon {claim.epsilon:.3f} ({claim.source.partition(':')[0]}); a claim promises nothing here."


def _unit(record: RunRecord) -> str:
    facts = record.plan.facts
    several = f"a {facts.unit} under several names" if facts.unit else "a person with several images"
    if record.certificate is None:
        return "Nobody is protected."
    return (
        f"Protected is {record.plan.unit}, each by itself. Not protected: {several}; what is true of the records as a whole, and would be without any one of them; the number of "
        "records, the names of the classes and the size of the images; which sets share records; what settings tell that were chosen by looking at private results; "
        "whether a run was refused; the public images."
    )


def _accesses(accesses: Sequence[Accesses]) -> Table:
    """A row for each kind of access; those for which there is no room share the last."""
    shown, rest = (
        (accesses, ()) if len(accesses) <= MOST_ROWS else (accesses[: MOST_ROWS - 1], accesses[MOST_ROWS - 1 :])
    )
    rows = [[STAGES.get(one.stage, one.stage), one.own, one.total, OUTCOMES[one.kind]] for one in shown]
    if rest:
        kinds = "; ".join(dict.fromkeys(OUTCOMES[one.kind] for one in rest))
        rows.append([f"{len(rest)} other kinds", sum(one.own for one in rest), sum(one.total for one in rest), kinds])
    head = ["every access to the private set", "for this run", "all runs", "outcome"]
    return Table("accesses", head, rows)


def _set(record: RunRecord, books: Books) -> str:
    relation = {"add_remove": "adding or removing one", "replace_one": "exchanging one"}[books.relation]
    price = (
        "no finite epsilon holds, since a reading had too little noise"
        if books.epsilon is None
        else _price(books.epsilon)
    )
    budget = (
        ""
        if books.budget is None
        else f" The budget is {books.budget:g}"
        + (f", of which {rounded_down(books.left)} is left." if books.left is not None else ".")
    )
    versions = (
        f" There are {books.versions} versions of it"
        + (
            f"; all together cost {_price(books.all_versions)}."
            if books.all_versions is not None
            else ", with no finite price together."
        )
        if books.versions > 1
        else " There is one version of it."
    )
    joined = (
        f" Sets that share records are counted in: {', '.join(books.joined)}."
        if books.joined
        else " No other set in this ledger counts as sharing its records."
    )
    return (
        f"{books.spends} noisy reading{'' if books.spends == 1 else 's'} by all runs together: {price} at delta {books.delta:.3g} ({relation})."
        f"{budget}{versions}{joined}"
    )


def _price(epsilon: float) -> str:
    return f"epsilon {rounded_up(epsilon)}"


def _facts(record: RunRecord, books: Books | None, images: str) -> list[list[str]]:
    """Day, versions, digests (fingerprints of content) and the head of the ledger."""
    code = ", ".join(books.code) if books else ""
    rows = [["run", record.run]]
    if books:
        rows.append(["dates", f"last noisy reading {books.paid or 'none'}; this page as of {books.as_of}"])
    rows.append(
        ["program", f"Sfumato {__version__}" + (f"; at each reading: {code} (version+digest of code)" if code else "")]
    )
    rows.append(["commit of the code", record.commit or "not known (installed without its history)"])
    rows.append(
        [
            "digest of the images",
            f"{images} (SHA-256 over the list of files)" if images else "given when they are published",
        ]
    )
    rows.append(["digest of card.json", "written in by hand (sha256sum card.json): the card seals this page"])
    if books:
        rows.append(["head of the ledger", f"entry {books.head}, {books.head_hash}"])
    return rows
