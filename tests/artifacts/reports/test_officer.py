"""The sheet for the person who decides: each thing it must say, for each kind of run, on one page, with nothing that must stay."""

import math

import pytest

from artifacts.books import Accesses, Books
from artifacts.record import Override
from artifacts.reports.officer import FURTHER, MOST_ROWS, TITLE, officer_page
from artifacts.reports.page import Blanks, Table, Text, in_html, section_in_markdown
from artifacts.reports.run import internal_page, public_page
from sfumato.methods.plan import UNCLAIMED
from sfumato.privacy.accounting.accountant import AtZero
from sfumato.privacy.auditing.findings import Audit, Bound
from tests.examples import DELTA, make_certificate, make_record
from tests.markup import Tags

LETTERS, LINES = 125, 66
"""Letters of a line and lines of a printed sheet, as a browser sets them at the smallest: 186 by 269 mm, 8.6 points, 1.34 apart."""
BOOKS = Books(
    accesses=(
        Accesses(kind="paid", stage="votes", own=1, total=3),
        Accesses(kind="look", stage="evaluation", own=2, total=7),
    ),
    spends=4,
    epsilon=12.3401,
    delta=DELTA,
    relation="add_remove",
    budget=20.0,
    left=7.6599,
    versions=2,
    all_versions=15.2,
    joined=("ward-b",),
    code=("0.1.0+cd46fef48e88",),
    paid="2026-01-01",
    as_of="2026-01-02T10:00:00+00:00",
    ledger="1" * 32,
    head=31,
    head_hash="e" * 64,
)
ODDS = AtZero(0.5432101, "dp-accounting 0.6.0 PLD")
AUDIT = Audit(
    run="a run",
    certificate=9.876,
    delta=DELTA,
    bound=Bound(epsilon=1.234, delta=DELTA, confidence=0.95, canaries=100, guesses=40, correct=31, attainable=3.0),
)


def text_of(record, **how) -> str:
    return "\n".join(section_in_markdown(officer_page(record, **how)))


@pytest.fixture
def certified(tmp_path):
    return make_record(tmp_path, books=BOOKS, at_zero=ODDS, commit="a" * 40, audit=AUDIT)


def test_a_certified_run_is_told_in_words_odds_and_formula(certified):
    text = text_of(certified)
    assert "private set 'scans' (1437 private records in 2 classes), adding random noise" in text
    assert "right at most 77.2 % of the time" in text and "delta(0) = 0.5433" in text
    assert "by dp-accounting 0.6.0 PLD; epsilon alone would say 99.99" in text
    assert certified.certificate.sentence() in text
    for word in ("Epsilon:", "Delta:", "Accountant:", "Ledger:", "a claim promises nothing"):
        assert word in text, f"{word} is explained"
    assert "Protected is one image with its label" in text and "a person with several images" in text


def test_every_access_and_the_cost_of_all_versions_and_joined_sets_are_told(certified):
    text = text_of(certified)
    assert "| votes for public classes | 1 | 3 | noise added; in the price |" in text
    assert "| comparison with real images | 2 | 7 | no noise; result stays inside |" in text
    assert (
        "4 noisy readings by all runs together: epsilon 12.341" in text
        and "budget is 20, of which 7.659 is left" in text
    )
    assert "2 versions of it; all together cost epsilon 15.200" in text and "counted in: ward-b" in text


def test_versions_digests_head_and_a_place_to_sign_are_there(certified):
    text = text_of(certified, images="b" * 64)
    for fact in ("2026-01-01", "0.1.0+cd46fef48e88", "a" * 40, "b" * 64, f"entry 31, {'e' * 64}", "card.json"):
        assert fact in text, fact
    assert "Signature: ____" in text and "given when they are published" in text_of(certified)


def test_the_sheet_that_may_leave_holds_no_result_of_an_attack(certified):
    public, inside = text_of(certified), text_of(certified, internal=True)
    assert "1.23" not in public and "of 40 guesses" not in public.lower() and "result stays inside: it is on" in public
    assert (
        "Of 40 guesses whether a test record had been used 31 were right" in inside
        and "at least 1.23 (95% confidence)" in inside
    )
    assert "sfumato audit" in text_of(certified.model_copy(update={"audit": None}), internal=True)
    assert public_page(certified).sections[0] == officer_page(certified)
    assert internal_page(certified).sections[0] == officer_page(certified, internal=True)
    assert certified.samples_artifact not in public


def test_an_ensemble_is_covered_for_its_finite_number_of_images(tmp_path):
    text = text_of(make_record(tmp_path, certificate=make_certificate(images=25), at_zero=ODDS, books=BOOKS))
    assert "holds for 25 images drawn" in text and "covering 25 images" in text


def test_an_exchange_is_another_coin(tmp_path):
    text = text_of(make_record(tmp_path, certificate=make_certificate(relation="replace_one"), at_zero=ODDS))
    assert "let a fair coin decide which of two was used (one image with its label)" in text


def test_a_run_with_a_claim_only_promises_nothing(tmp_path):
    claim = Override(kind="claim", reason="the board agreed", missing="a sound proof", entry=9)
    text = text_of(make_record(tmp_path, certificate=None, label="INTERNAL", overrides=[claim], books=BOOKS))
    assert "a person let it leave on the claim of a paper" in text and "the board agreed" in text
    assert "at even odds a guess may be right all of the time" in text and "Nobody is protected." in text
    assert "claims epsilon 76.380 (Proposition 1)" in text and "right at most" not in text


def test_a_run_without_noise_says_so(tmp_path):
    text = text_of(make_record(tmp_path, certificate=None, label="INTERNAL", claim=UNCLAIMED, books=BOOKS))
    assert "without any noise" in text and "must not leave" in text and "inf" not in text.replace("inside", "")
    assert "No paper claims privacy for a run without noise" in text


def test_a_record_of_before_is_told_by_its_epsilon_alone(tmp_path):
    record = make_record(tmp_path)
    assert record.at_zero is None and record.books is None
    text = text_of(record)
    assert "right at most 100.0" not in text and "follows from epsilon and delta alone" in text
    assert "A record of an earlier version" in text


def test_the_odds_are_never_worse_than_those_of_epsilon(tmp_path):
    record = make_record(tmp_path, certificate=make_certificate(epsilon=0.1), at_zero=AtZero(1.0, "none"))
    assert "right at most 52.6 % of the time" in text_of(record)


def lines(block) -> float:
    """Lines of print that a block takes, with the space below it, at the least letters to a line."""
    if isinstance(block, Text):
        return math.ceil((len(block.lead) + len(block.text) + len(block.further)) / LETTERS) + 0.4
    if isinstance(block, Table):
        return (
            sum(
                max(math.ceil(len(str(cell)) / (LETTERS * 0.7)) for cell in row) + 0.2
                for row in [block.head, *block.rows]
            )
            + 0.5
        )
    assert isinstance(block, Blanks)
    return 4


def test_everything_fits_on_one_sheet_also_at_its_longest(certified):
    many = tuple(Accesses(kind="look", stage=f"stage {n}", own=n, total=n) for n in range(MOST_ROWS + 5))
    long = certified.model_copy(
        update={
            "books": BOOKS.model_copy(update={"accesses": many, "code": tuple(f"0.1.0+{n:012}" for n in range(4))}),
            "claim": certified.claim.model_copy(update={"source": "Theorem 2, without amplification by sampling " * 3}),
        }
    )
    for record in (certified, long):
        page = officer_page(record, images="b" * 64, internal=True)
        assert 3 + sum(lines(block) for block in page.blocks) < LINES
    assert "| 6 other kinds |" in text_of(long)


def test_it_is_the_first_page_with_a_break_after_it_and_a_link_to_the_limits(certified):
    page = public_page(certified)
    text = in_html(page, str)
    assert page.sections[0].title == TITLE and page.sections[0].sheet
    assert '<section class="first sheet">' in text
    assert "section.sheet { break-after: page;" in text and "size: A4" in text
    links = [value for name, value in Tags(text).attributes if name == "href"]
    assert links == ["#what-is-not-covered"] and '<section id="what-is-not-covered"' in text
    assert FURTHER in [section.title for section in page.sections]
