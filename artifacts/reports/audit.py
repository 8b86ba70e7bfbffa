"""The results of an audit, as a picture and as a page. INTERNAL, both: they were measured against private images.

The picture has four panels: epsilon (what the canaries refute, beside certificate and claim), ROC curves of the attacks,
the area under them at each diffusion time, and how near published images come to real records.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from artifacts.labels import Label
from artifacts.reports.in_short import NOTHING_CERTIFIED
from artifacts.reports.page import Page, PageSection, Picture, Table, Text
from sfumato.evaluation.attack_results import Membership
from sfumato.evaluation.membership import COMBINED, CONTROL, CURVE_RATES, LOOSE_RATE, NEAREST, STRICT_RATE
from sfumato.privacy.auditing.findings import Audit, Bound, Fit

AUDIT_REPORT, AUDIT_PICTURE = "audit-internal.html", "audit-internal.png"
CANARIES = "canaries"
"""Name of the canary attack in the picture."""
RED, GREEN, BLUE, GREY, AMBER = "#b3261e", "#2e7d32", "#1f5fa8", "#8a8f98", "#b26a00"
COLOURS = {COMBINED: BLUE, NEAREST: AMBER, CONTROL: GREY, CANARIES: RED}
BINS = 60
"""Bars of the histogram of distances."""

LEANING = 1e-3
"""p-value below which the report says that images lean towards training records."""

NOT_COVERED = PageSection(
    "What an audit does not cover",
    [
        Text(
            "A failed attack proves nothing: another one may succeed. The bound holds for this attack on one training of this kind, on "
            "a copy of the private set with canaries in it, with the confidence stated; it says nothing about other settings. It counts "
            "adding or removing a record, also where the certificate speaks of exchanging one. The copy check compares whole images "
            "pixel by pixel: shifted, mirrored or partial copies are not found. Attacks that compare training with held-out records "
            "need both to be alike but for their membership; the control shows whether they are."
        )
    ],
)
"""The limits of an audit, shown wherever its result is."""
NOTICE = "Do not share: measured against private images without noise."
WHITE_BOX = (
    "what this spend costs at least, with the noise, contribution and rate that were seen; it is priced at {priced}"
)
PICTURE_SHOWS = "What the audit found: epsilon, attacks, attacks at each diffusion time, distances to real records."


def audit_page(audit: Audit) -> Page:
    """The result as a page of its own."""
    return Page(f"Audit of {audit.run}", Label.INTERNAL, NOTICE, audit_sections(audit))


def audit_sections(audit: Audit) -> list[PageSection]:
    """The result, each part with its verdict."""
    attacks = [*([audit.canary_attack] if audit.canary_attack else []), *audit.memberships]
    head = ["attack", "AUC", "95 % interval", f"TPR at {STRICT_RATE:.0%} FPR", f"TPR at {LOOSE_RATE:.0%} FPR"]
    rows = [
        [
            row.name,
            f"{row.auc:.3f}",
            "{:.3f} to {:.3f}".format(*row.auc_interval),
            f"{row.strict_rate:.1%}",
            f"{row.loose_rate:.1%}",
            f"{row.members} and {row.others}",
            attack_verdict(row),
        ]
        for row in attacks
    ]
    attacks_block = (
        Table("attacks", [*head, "members and others", "verdict"], rows) if rows else Text("No attack was run.")
    )
    epsilons = Table("audit-epsilon", ["", "epsilon", "delta", "what it is"], _epsilons(audit))
    summary = Text(verdict(audit), f"{outcome(audit).capitalize()}.")
    return [
        PageSection("Audit", [summary, Picture(AUDIT_PICTURE, PICTURE_SHOWS), epsilons, Text(bound_verdict(audit))]),
        PageSection("White-box tests", _fits(audit)),
        PageSection("Attacks", [attacks_block]),
        PageSection("Copies", _copies(audit)),
        NOT_COVERED,
    ]


def outcome(audit: Audit) -> str:
    """The audit in one to three words."""
    if not audit.passed:
        return "not passed"
    return "passed, but attacks succeed" if _telling(audit) else "passed"


def _telling(audit: Audit) -> list[str]:
    """Names of the attacks that separate members from others."""
    attacks = [*audit.memberships, *([audit.canary_attack] if audit.canary_attack else [])]
    return [row.name for row in attacks if row.succeeded and row.name != CONTROL and row.t is None]


def verdict(audit: Audit) -> str:
    """The audit in a sentence or two."""
    sentences = []
    if audit.faults:
        sentences.append(
            f"A mechanism does not do what its ledger entry says: {'; '.join(audit.faults)}. Do not hand this run over, and mend "
            "the mechanism."
        )
    if audit.outguessed and audit.bound:
        sentences.append(
            f"The {audit.guessed_at} refute what is promised: epsilon is above {audit.bound.epsilon:.2f}, not {audit.promised:.2f}; "
            "do not hand this run over, and look for the fault in the mechanism or its accounting."
        )
    if audit.copies and not audit.copies.passed:
        sentences.append(
            f"{_count(audit.copies.unexplained, 'published image')} repeat{'s' * (audit.copies.unexplained == 1)} a training "
            "record: do not hand them over, and look at the pairs."
        )
    if audit.copies is None:
        sentences.append("No copy check was done, so that this audit clears nothing.")
    elif audit.passed:
        sentences.append("No test refutes the promise, and no published image repeats a training record.")
    if telling := _telling(audit):
        sentences.append(
            f"Members can be told from others ({', '.join(telling)}); a promise of this size may allow that."
        )
    if audit.copies and audit.copies.p_value < LEANING:
        sentences.append(
            f"Images lean towards training records (p = {audit.copies.p_value:.2g}): the model remembers some of them."
        )
    return " ".join(sentences)


def bound_verdict(audit: Audit) -> str:
    """The bound from the canaries, in a sentence."""
    bound = audit.bound
    if bound is None and audit.certificate is None and not audit.fits:
        return f"{NOTHING_CERTIFIED}; the attacks were made all the same."
    if bound is None:
        return "No canary audit was done."
    guesses = (
        f"Of {bound.canaries} {audit.guessed_at} the attacker guessed {bound.guesses} and was right {bound.correct} times: with "
        f"{bound.confidence:.0%} confidence epsilon is at least {bound.epsilon:.2f}."
        + (f" Each canary was {audit.canary}." if audit.canary else "")
    )
    if audit.promised is None:
        return f"{guesses} Nothing is promised that it could be compared with."
    what = f"{'claim' if audit.certificate is None else 'certificate'} of {audit.promised:.2f}"
    if audit.outguessed:
        return f"{guesses} That is above the {what}, which therefore cannot hold."
    if bound.attainable < audit.promised:
        return (
            f"{guesses} The {what} is not refuted. This audit could not have refuted it: with so few of them "
            f"even an attacker who is always right shows no more than {bound.attainable:.2f}."
        )
    return f"{guesses} The {what} is not refuted, though this audit could have refuted it."


def fit_verdict(fit: Fit) -> str:
    """The result of a white-box test, in a few sentences."""
    seen = (
        f"{fit.what}: {fit.numbers:,} noise numbers were {fit.noise:.4f} times as large as the entry says (at most "
        f"{fit.noise_at_most:.4f} times); a made-up record moved the output by {fit.contribution:.4f} of what the "
        f"entry says. Such a mechanism costs an epsilon of at least {fit.epsilon:.3f}; the entry is priced at {fit.priced:.3f}."
    )
    chance = f"A mechanism that does what its entry says is found faulty by chance once in {1 / fit.false_alarm:,.0f} tests, at most."
    if fit.faults:
        return f"{seen} FAULT: {'; '.join(fit.faults)}. {chance}"
    return (
        f"{seen} No fault: the noise is at least what the entry says, on every tensor and drawn again in each step, and a record "
        f"contributes no more and no more often. {chance}"
    )


def _fits(audit: Audit) -> list[Text | Table]:
    return [Text(fit_verdict(fit)) for fit in audit.fits] or [Text("No mechanism of this run was tested.")]


def attack_verdict(attack: Membership) -> str:
    """One line on an attack."""
    if attack.name == CONTROL:
        return (
            "members and others differ by themselves: discount the attacks on losses"
            if attack.succeeded or attack.auc_interval[1] < 0.5
            else "members and others are alike, as they should be"
        )
    return "tells members better than guessing" if attack.succeeded else "no better than guessing"


def draw_audit(
    path: Path,
    audit: Audit,
    to_train: Tensor | np.ndarray | Sequence[float] = (),
    to_test: Tensor | np.ndarray | Sequence[float] = (),
) -> None:
    """Draw the four panels; the distances `[n]` of published images to training and held-out records come from the copy check."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 2, figsize=(12.5, 8.6))
    _draw_epsilons(panels[0, 0], audit)
    _draw_curves(panels[0, 1], audit)
    _draw_times(panels[1, 0], audit)
    _draw_distances(panels[1, 1], audit, np.asarray(to_train, dtype=float), np.asarray(to_test, dtype=float))
    for panel in panels.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9)
    result = outcome(audit)
    colour = {"passed": "black", "not passed": RED}.get(result, AMBER)
    figure.suptitle(f"INTERNAL  ·  audit of {audit.run}: {result}", fontsize=13, color=colour)
    figure.tight_layout(h_pad=2.5, w_pad=2.5, rect=(0, 0, 1, 0.98))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_epsilons(panel: Any, audit: Audit) -> None:
    bound, certificate = audit.bound, audit.certificate
    rows: list[tuple[str, float | None, str]] = [
        ("claim of\nthe paper", audit.claim, GREY),
        ("certificate", certificate, GREEN),
        (
            f"shown by guesses\n({bound.confidence:.0%} confidence)" if bound else "guesses",
            bound.epsilon if bound else None,
            RED,
        ),
    ]
    known = [value for _, value, _ in rows if value is not None] + ([bound.attainable] if bound else [])
    widest = max([1.0, *known])
    for at, (_, value, colour) in enumerate(rows):
        panel.barh(at, value or 0, height=0.5, color=colour)
        shown = "none" if value is None else f"{value:.2f}" if value < 100 else f"{value:,.0f}"
        panel.annotate(
            shown, (value or 0, at), xytext=(5, 0), textcoords="offset points", va="center", fontweight="bold"
        )
    if bound:
        if bound.attainable > bound.epsilon:
            panel.plot([bound.attainable] * 2, [1.68, 2.32], color=RED, linestyle=":")
            side = "left" if bound.attainable < widest / 2 else "right"
            note = f"were all guesses right: {bound.attainable:.2f}"
            panel.text(bound.attainable, 2.36, note, color=RED, fontsize=8, ha=side, va="bottom")
    if certificate is not None:
        panel.plot([certificate] * 2, [1, 2.3], color=GREEN, linewidth=1.5)
    panel.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=10)
    panel.set_ylim(-0.5, 2.75)
    _spread_axis(panel, widest)
    panel.set_xlabel(f"epsilon at delta = {audit.delta:.2g}")
    title, colour = _title(audit.bound, audit)
    panel.set_title(title, fontsize=11, color=colour, loc="left")


def _title(bound: Bound | None, audit: Audit) -> tuple[str, str]:
    if bound is None:
        return "No coins were guessed", "black"
    if audit.promised is None:
        return f"Guesses: epsilon is above {bound.epsilon:.2f}; nothing is promised", "black"
    what = "Claim" if audit.certificate is None else "Certificate"
    if audit.faults:
        return f"{what} REFUTED: {audit.faults[0]}", RED
    if audit.outguessed:
        return f"{what} REFUTED: guesses say above {bound.epsilon:.2f}", RED
    if bound.attainable < audit.promised:
        return f"{what} not refuted (too few guesses to do so)", "black"
    return f"{what} not refuted", GREEN


def _spread_axis(panel: Any, widest: float) -> None:
    """A linear axis, or one that is linear up to 1 and logarithmic beyond where a number is far larger than the rest."""
    if widest <= 25:
        panel.set_xlim(0, 1.15 * widest)
        return
    panel.set_xscale("symlog", linthresh=1, linscale=0.6)
    panel.set_xlim(0, 3 * widest)
    powers = range(int(np.log10(3 * widest)) + 1)
    panel.set_xticks([0, *(10.0**n for n in powers[:: 1 + len(powers) // 6])])
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    panel.minorticks_off()


def _draw_curves(panel: Any, audit: Audit) -> None:
    shown = [(row.name, row) for row in audit.memberships if row.t is None]
    shown += [(CANARIES, audit.canary_attack)] if audit.canary_attack else []
    panel.set_title("Who was in the training data? True against false positives", fontsize=11, loc="left")
    if not shown:
        _nothing(panel, "no attack was run")
        return
    rates = np.array(CURVE_RATES[1:])
    panel.plot(rates, rates, color="black", linewidth=0.8, linestyle="--", label="guessing: 0.5")
    for name, row in shown:
        label = f"{name}: AUC {row.auc:.3f} ({row.auc_interval[0]:.2f} to {row.auc_interval[1]:.2f})"
        style = ":" if name == CONTROL else "-"
        curve = np.array(row.curve[1:])
        panel.plot(
            rates, np.where(curve > 0, curve, np.nan), style, color=COLOURS.get(name), linewidth=1.8, label=label
        )
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlim(rates[0], 1)
    panel.set_ylim(rates[0], 1.15)
    panel.set_xlabel("others taken for members (false positive rate)")
    panel.set_ylabel("members found (true positive rate)")
    panel.legend(fontsize=8, loc="lower right", frameon=False)


def _draw_times(panel: Any, audit: Audit) -> None:
    rows = sorted((row for row in audit.memberships if row.t is not None), key=lambda row: row.t or 0)
    panel.set_title("Loss attack at each diffusion time", fontsize=11, loc="left")
    if not rows:
        _nothing(panel, "no released model to attack")
        return
    areas = np.array([row.auc for row in rows])
    reach = np.abs(np.array([row.auc_interval for row in rows]).T - areas)
    panel.axhline(0.5, color="black", linewidth=0.8, linestyle="--")
    panel.errorbar(range(len(rows)), areas, yerr=reach, fmt="o", color=BLUE, capsize=3, linewidth=1.5)
    panel.set_xticks(range(len(rows)), [str(row.t) for row in rows])
    panel.set_ylim(min(0.35, float((areas - reach[0]).min()) - 0.02), max(0.75, float((areas + reach[1]).max()) + 0.02))
    panel.set_xlim(-1.2, len(rows) - 0.5)
    panel.annotate("guessing", (-1.15, 0.5), xytext=(0, 3), textcoords="offset points", fontsize=8)
    panel.set_xlabel("diffusion time t (little noise to much)")
    panel.set_ylabel("AUC, 95 % interval")


def _draw_distances(panel: Any, audit: Audit, to_train: np.ndarray, to_test: np.ndarray) -> None:
    panel.set_title("Do published images repeat real records?", fontsize=11, loc="left")
    check = audit.copies
    if check is None or not len(to_train):
        _nothing(panel, "no copy check was done")
        return
    edges = np.linspace(0, 1.02 * max(to_train.max(), to_test.max(), check.copy_distance), BINS + 1)
    panel.hist(to_train, edges, color=BLUE, alpha=0.45, label=f"to the nearest of {check.train:,} training records")
    panel.hist(to_test, edges, color=AMBER, histtype="step", linewidth=1.6, label=f"of {check.test:,} held-out records")
    panel.axvspan(0, check.copy_distance, color=RED, alpha=0.08)
    panel.axvline(check.copy_distance, color=RED, linewidth=1)
    copies = to_train[(to_train <= check.copy_distance) & (to_test > check.copy_distance)]
    top = 1.3 * panel.get_ylim()[1]
    panel.set_ylim(0, top)
    if len(copies):
        panel.plot(copies, np.full(len(copies), 0.04 * top), "v", color=RED, clip_on=False)
    note = f"copies: {check.copies}\nunexplained: {check.unexplained}"
    panel.text(check.copy_distance, 0.97 * top, f" {note}".replace("\n", "\n "), color=RED, fontsize=9, va="top")
    panel.set_xlim(0, edges[-1])
    panel.set_xlabel("difference per pixel (root mean square, pixels in -1 to 1)")
    panel.set_ylabel("published images")
    panel.legend(fontsize=8, loc="upper right", frameon=False)


def _nothing(panel: Any, why: str) -> None:
    panel.text(0.5, 0.5, why, ha="center", va="center", color=GREY, transform=panel.transAxes)
    panel.set_xticks([])
    panel.set_yticks([])


def _epsilons(audit: Audit) -> list[list[str]]:
    delta, number = f"{audit.delta:.3g}", _number
    rows = [
        ["certificate", number(audit.certificate), delta, "what is promised: no more than this"],
        ["claim of the paper", number(audit.claim), delta, "what the paper's own analysis says"],
    ]
    rows += [
        [
            f"{fit.what}, as its noise is",
            number(fit.epsilon),
            f"{fit.delta:.3g}",
            WHITE_BOX.format(priced=number(fit.priced)),
        ]
        for fit in audit.fits
    ]
    if audit.bound:
        what = f"what guessing shows, with {audit.bound.confidence:.0%} confidence: no less than this"
        best = "what they would show if every guess were right"
        rows += [
            [audit.guessed_at, number(audit.bound.epsilon), f"{audit.bound.delta:.3g}", what],
            [f"{audit.guessed_at} at best", number(audit.bound.attainable), f"{audit.bound.delta:.3g}", best],
        ]
    return rows


def _copies(audit: Audit) -> list[Text | Table]:
    check = audit.copies
    if check is None:
        return [Text("No copy check was done.")]
    rows: list[list[Any]] = [
        ["published images", check.images],
        [f"copies of one of {check.train} training records", check.copies],
        [f"copies of one of {check.test} held-out records", check.copies_held_out],
        ["copies that no held-out record explains", check.unexplained],
        ["nearest real record is a training record", f"{check.nearest_train:.1%}"],
        ["the same, if images did not depend on the training part", f"{check.expected_train:.1%}"],
        ["p-value of leaning towards training records", f"{check.p_value:.3g}"],
        ["median distance to training, held-out records", f"{check.median_train:.3f}, {check.median_test:.3f}"],
    ]
    pairs = [
        [pair.image, pair.record, f"{pair.distance:.4f}", f"{pair.held_out_distance:.4f}"] for pair in check.closest
    ]
    result = Text("No published image repeats a training record that the held-out part does not hold as well.")
    if not check.passed:
        lead = f"{_count(check.unexplained, 'image')} too near to a training record."
        rest = "Look at the pairs: a trivial picture, such as a blank one, may be chance; anything else is a leak."
        result = Text(rest, lead)
    return [
        Text(f"A copy differs by at most {check.copy_distance:.4f} per pixel (root mean square, pixels in -1 to 1)."),
        Table("copies", ["copy check", ""], rows),
        result,
        Text("The closest pairs:"),
        Table("closest", ["image", "training record", "distance", "to the nearest held-out record"], pairs),
    ]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
