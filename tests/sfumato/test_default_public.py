"""Where nobody names public images, they are drawn to suit the private ones, and private records may say which kind."""

import pytest
from PIL import Image

from sfumato.clusters import FEWEST, MOST, clusters_for
from sfumato.default_public import CANDIDATES, IMAGES_IN_CLUSTER, SHARES
from sfumato.errors import BadInput
from sfumato.methods.plan import STAGE_SELECTION
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting import accountant
from sfumato.settings import resolve

FEW = "privacy.epsilon=0.5"
"""At which 400 records tell no clusters apart."""


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


@pytest.mark.parametrize(("mode", "public"), [("L", "glyphs+shapes"), ("RGB", "shapes")])
def test_private_records_vote_for_clusters_of_what_is_drawn(scans, mode, public):
    settings, facts, warnings = settle(f"data.private={scans / mode}")
    assert settings.data.public == public and settings.selection.clusters == facts.clusters >= FEWEST
    assert facts.learnt_classes == min(8, facts.clusters) and not facts.sources
    assert "private records vote for those of them that they look like" in warnings[-1]
    plan = plan_for(settings, facts)
    assert plan.spends[0].what == "votes for the public clusters to learn from"
    (event,) = plan.events(STAGE_SELECTION)
    assert facts.clusters == clusters_for(facts.records, event.noise_multiplier)
    assert f"images of those of {facts.clusters} clusters" in " ".join(str(plan).split())


def test_records_without_number_make_for_as_many_clusters_as_there_can_be_at_a_smaller_share(scans):
    settings, facts, _ = settle(f"data.private={scans / 'RGB'}", "data.records=3000000")
    assert settings.selection.clusters == MOST and settings.selection.share == SHARES[0]


def test_small_public_sets_are_parted_into_fewer_clusters(scans):
    settings, _, _ = settle(f"data.private={scans / 'RGB'}", "data.records=30000", "data.shapes_per_class=50")
    assert settings.selection.clusters == 400 // IMAGES_IN_CLUSTER


def test_of_larger_images_fewer_are_drawn_in_search_of_more(scans):
    small, large = (settle(f"data.private={scans / 'RGB'}", f"data.size={size}")[0].selection for size in (16, 64))
    assert small.candidates == CANDIDATES and large.candidates == CANDIDATES // 4 and small.clusters == large.clusters


def test_records_too_few_for_clusters_choose_between_letters_and_shapes(scans):
    settings, facts, warnings = settle(f"data.private={scans / 'L'}", FEW)
    assert settings.data.public == "glyphs+shapes" and settings.selection.sources == 1
    assert facts.public_classes == 60 and facts.learnt_classes == 8 and len(set(facts.sources)) == 2
    assert "private records vote for the kind that is public" in warnings[-1] and "data.public=PATH" in warnings[-1]
    plan = plan_for(settings, facts)
    assert (
        plan.spends[0].stage == STAGE_SELECTION and plan.spends[0].what == "votes for the public sources to learn from"
    )
    assert "60 classes of 2 sources" in str(plan)
    alone = accountant.epsilon(plan.events(STAGE_SELECTION), plan.privacy.delta)
    assert settings.selection.share == SHARES[-1] and alone == pytest.approx(
        SHARES[-1] * plan.privacy.epsilon, rel=0.02
    )


@pytest.mark.parametrize(
    ("mode", "method", "changes", "public"),
    [
        ("RGB", "dp-sgd", [FEW], "shapes"),
        ("RGB", "dp-sgd", ["selection.clusters=0"], "shapes"),
        ("L", "dp-sgd", ["pretraining.steps=0"], "glyphs+shapes"),
        ("L", "dp-sgd", ["selection.classes=2"], "glyphs+shapes"),
        ("L", "dppm", [], "glyphs+shapes"),
        ("L", "dp-merf", [], "glyphs+shapes"),
    ],
)
def test_nobody_votes_where_votes_would_change_nothing(scans, mode, method, changes, public):
    settings, facts, warnings = settle(f"data.private={scans / mode}", *changes, method=method)
    assert settings.data.public == public
    assert not settings.selection.sources and not settings.selection.clusters and not facts.sources
    assert "data.public names no images" in warnings[-1] and "vote" not in warnings[-1]


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
