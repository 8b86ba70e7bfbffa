"""Where nobody names public images, they are drawn to suit the private ones, and private records may say which kind."""

import pytest
from PIL import Image

from sfumato.default_public import CLEAR, SHARES
from sfumato.errors import BadInput
from sfumato.methods.plan import STAGE_SELECTION
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting import accountant
from sfumato.settings import resolve


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Folders of 400 grey images, and of as many in colour."""
    root = tmp_path_factory.mktemp("scans")
    for mode in ("L", "RGB"):
        for name in "ab":
            (root / mode / name).mkdir(parents=True)
            for number in range(200):
                Image.new(mode, (16, 16), (number,) * len(mode)).save(root / mode / name / f"{number}.png")
    return root


def settle(*changes, method="dp-sgd"):
    return preflight(resolve(method, changes=list(changes)))


def test_beside_grey_images_both_kinds_are_drawn_and_private_records_choose(scans):
    settings, facts, warnings = settle(f"data.private={scans / 'L'}")
    assert settings.data.public == "glyphs+shapes" and settings.selection.sources == 1
    assert facts.public_classes == 60 and facts.learnt_classes == 8 and len(set(facts.sources)) == 2
    assert "private records vote for the kind that is public" in warnings[-1] and "data.public=PATH" in warnings[-1]
    plan = plan_for(settings, facts)
    assert (
        plan.spends[0].stage == STAGE_SELECTION and plan.spends[0].what == "votes for the public sources to learn from"
    )
    assert "60 classes of 2 sources" in str(plan)
    alone = accountant.epsilon(plan.events(STAGE_SELECTION), plan.privacy.delta)
    assert alone == pytest.approx(settings.selection.share * plan.privacy.epsilon, rel=0.02)


@pytest.mark.parametrize("epsilon", [10.0, 3.0])
def test_the_votes_cost_no_more_than_leaves_their_noise_no_doubt(scans, epsilon):
    settings, facts, _ = settle(f"data.private={scans / 'L'}", f"privacy.epsilon={epsilon}")
    plan = plan_for(settings, facts)
    (event,) = plan.events(STAGE_SELECTION)
    difference = event.noise_multiplier * (2 * len(facts.classes)) ** 0.5
    assert difference <= CLEAR * facts.records and settings.selection.share in SHARES
    at = SHARES.index(settings.selection.share)
    assert at == 0 or difference * SHARES[at] / SHARES[at - 1] > 0.9 * CLEAR * facts.records, "a smaller share would do"


def test_at_a_small_epsilon_the_votes_have_the_largest_share(scans):
    settings, facts, _ = settle(f"data.private={scans / 'L'}", "privacy.epsilon=0.05")
    assert settings.selection.share == SHARES[-1] and facts.sources


@pytest.mark.parametrize(
    ("mode", "method", "changes", "public"),
    [
        ("RGB", "dp-sgd", [], "shapes"),
        ("RGB", "dp-sgd", ["data.channels=1"], "glyphs+shapes"),
        ("L", "dp-sgd", ["pretraining.steps=0"], "glyphs+shapes"),
        ("L", "dp-sgd", ["selection.classes=2"], "glyphs+shapes"),
        ("L", "dppm", [], "glyphs+shapes"),
        ("L", "dp-merf", [], "glyphs+shapes"),
    ],
)
def test_nobody_votes_where_votes_would_change_nothing(scans, mode, method, changes, public):
    settings, facts, warnings = settle(f"data.private={scans / mode}", *changes, method=method)
    assert settings.data.public == public
    voting = (mode, changes) == ("RGB", ["data.channels=1"])
    assert bool(settings.selection.sources) == bool(facts.sources) == voting
    assert "data.public names no images" in warnings[-1] and ("vote" in warnings[-1]) == voting


def test_the_warning_says_that_clusters_are_voted_for(scans):
    warnings = settle(f"data.private={scans / 'RGB'}", "selection.clusters=20")[2]
    assert "shapes drawn at random are public, and private records vote for clusters of them" in warnings[-1]


@pytest.mark.parametrize(
    "named", ["data.public=glyphs", "data.public_classes=[a,b]", "data.glyphs=both", "data.glyphs_per_class=50"]
)
def test_what_a_person_names_stays(scans, named):
    settings, facts, warnings = settle(f"data.private={scans / 'L'}", named)
    assert settings.data.public == "glyphs" and not settings.selection.takes_votes and not facts.sources
    assert not [line for line in warnings if "names no images" in line]


def test_beside_writing_the_public_images_are_letters():
    settings, _, warnings = settle("data.private=digits")
    assert settings.data.public == "glyphs" and not settings.selection.takes_votes and not warnings


def test_drawn_images_are_not_their_own_public_ones():
    with pytest.raises(BadInput, match="public images must not come from"):
        settle("data.private=shapes")
