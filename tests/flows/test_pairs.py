"""Ablation pairs: which halves they have, who can bear them, and that each run is made once."""

import re

import pytest

from flows.ablations import ABLATIONS, described
from flows.pairs import also_differs, paired, placed
from flows.variants import RunGrid, cells_of, planned
from sfumato.errors import BadInput
from sfumato.methods import METHODS

QUICK = ["fine_tuning.steps=1", "fine_tuning.sample_rate=1", "generation.images=20", "evaluation.images=20"]


def grid(*variants, seeds=(0,), epsilons=(), preset="digits", changes=QUICK):
    return RunGrid(variants, preset, epsilons, seeds, changes)


def halves(name, variant):
    (pair,) = paired([name], grid(variant)).pairs
    return pair.variant, pair.without


@pytest.mark.parametrize(
    ("name", "variant", "with_part", "without"),
    [
        ("votes", "rapid", "rapid", "rapid method.votes=false"),
        ("votes", "dp-sgd", "dp-sgd method.votes=true", "dp-sgd"),
        ("retrieval", "rapid method.k=0.6", "rapid method.k=0.6", "rapid method.k=0.6 method.neighbour=random"),
        ("eq5", "rapid", "rapid", "rapid method.target=plain"),
        ("central", "dp-promise", "dp-promise central.images=4", "dp-promise"),
        ("central", "dp-sgd central.images=2", "dp-sgd central.images=2", "dp-sgd central.images=0"),
        ("judge", "moments", "moments judge.use=weigh", "moments"),
        ("judge", "dp-sgd judge.use=relabel", "dp-sgd judge.use=relabel", "dp-sgd judge.use=none"),
    ],
)
def test_the_half_that_differs_is_written_out(name, variant, with_part, without):
    assert halves(name, variant) == (with_part, without)


def test_what_cannot_stand_beside_a_part_is_off_in_both_halves():
    off = "rapid method.votes=false"
    assert halves("moments", "rapid") == (f"{off} alignment.kind=moments", off)
    assert halves("votes", "dp-sgd alignment.kind=moments") == (
        "dp-sgd alignment.kind=none method.votes=true", "dp-sgd alignment.kind=none",
    )  # fmt: skip
    assert halves("mechanism", "rapid fine_tuning.draws=2") == (
        "rapid fine_tuning.draws=2 method.votes=false alignment.kind=moments",
        "moments fine_tuning.draws=2",
    )
    replaced = "dp-promise privacy.relation=replace_one"
    assert halves("phase-one", "dp-promise") == (f"{replaced} method.phase_one=noised_once", replaced)


def test_a_part_that_the_settings_have_at_one_budget_alone_is_written_out_in_both_halves(monkeypatch):
    monkeypatch.setattr("flows.pairs._present", lambda name, variant, budgets: [True, False])
    assert halves("retrieval", "rapid") == ("rapid method.neighbour=nearest", "rapid method.neighbour=random")


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_pair_can_be_planned_and_differs_in_its_part_alone(name):
    part = ABLATIONS[name]
    assert part.borne_by()
    made = paired([name], RunGrid((), "digits", (), (0,), QUICK))
    assert [pair.variant.split()[0] for pair in made.pairs] == part.borne_by()
    cells = planned(made)
    assert {cell.variant for cell in cells} == {half for pair in made.pairs for half in (pair.variant, pair.without)}
    differing = list(also_differs(made.pairs, cells))
    if name != "mechanism":
        assert differing == []
    for line in differing:  # a preset's settings of a method, which class moments alone have not
        assert set(re.findall(r"(\w+)\.\w+ \(", line)) == {"generation"}


@pytest.mark.parametrize("name", ABLATIONS)
def test_a_pair_that_a_method_cannot_bear_is_refused(name):
    for method in set(METHODS) - set(ABLATIONS[name].borne_by()):
        with pytest.raises(BadInput, match=f"^--pairs {name}: {method} cannot have it") as refused:
            paired([name], grid(method))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["central", "moments"])
def test_what_is_refused_would_be_refused_by_the_plan_too(name):
    part = ABLATIONS[name]
    for method in set(METHODS) - set(part.borne_by()):
        on = placed(method, part.setting, part.on)
        if not METHODS[method].needs_moments or name == "central":
            with pytest.raises(BadInput):
                cells_of(grid(), [on])


def test_runs_that_several_pairs_share_are_made_once():
    made = paired(["votes", "judge", "votes"], grid("dp-sgd", seeds=(0, 1), epsilons=(1.0, 10.0)))
    assert made.variants == ["dp-sgd", "dp-sgd method.votes=true", "dp-sgd judge.use=weigh"] and len(made.pairs) == 2
    assert len(planned(made)) == 12


@pytest.mark.parametrize(
    ("names", "variant", "message"),
    [
        (["vote"], "rapid", "unknown pair 'vote': did you mean 'votes'"),
        (["votes"], "rapide", "did you mean 'rapid'"),
        (["votes"], "", "unknown method ''"),
    ],
)
def test_unknown_names_are_one_line(names, variant, message):
    with pytest.raises(BadInput, match=message):
        paired(names, grid(variant))


def test_a_seed_counts_once():
    with pytest.raises(BadInput, match="seeds 0, 0: one is there twice"):
        planned(grid("dp-sgd", seeds=(0, 0)))


def test_settings_that_follow_from_a_part_are_named():
    """The recipe gives its time to other steps where a judge has to be trained."""
    made = paired(["judge"], grid("dp-sgd judge.use=weigh", preset="auto", changes=["recipe.minutes=8"]))
    (line,) = also_differs(made.pairs, planned(made))
    assert line.startswith("pair judge of dp-sgd judge.use=weigh: these follow from it and differ too: ")
    assert "pretraining.steps (" in line and "judge." not in line.split("too:")[1]


def test_every_part_names_the_methods_that_bear_it():
    text = described()
    assert "votes (votes for public classes; RAPID and plain DP-SGD)" in text and "all methods" in text
    assert all(f"{name} ({part.what}; {part.who})" in text for name, part in ABLATIONS.items())
    assert ABLATIONS["votes"].methods == "rapid, dp-sgd" and ABLATIONS["judge"].methods == "all methods"
    assert ABLATIONS["moments"].methods == "all but moments, dppm"
