"""Ablation pairs on the command line: what help lists, what is shown before anything runs, and mistakes in one line."""

import sys
from types import ModuleType

import pytest

from flows.ablations import ABLATIONS

ONE_STEP = ("--set", "fine_tuning.steps=1", "--set", "fine_tuning.sample_rate=1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "0,0", "--method", "dp-sgd"], ("seeds 0, 0: one is there twice",)),
        (["--pairs", "vote"], ("unknown pair 'vote'", "did you mean 'votes'")),
        (["--pairs", ",", "--method", "dp-sgd"], ("--pairs ',' names no part", "phase-one")),
        (["--method", "dppm", "--pairs", "votes"], ("--pairs votes: dppm cannot have it", "rapid, dp-sgd")),
        (["--method", "dp-sgd", "--pairs", "judge", "--seeds", "0,a"], ("--seeds '0,a' is not a list of numbers",)),
    ],
)
def test_a_mistake_in_pairs_is_one_line(sfumato, arguments, words):
    assert sfumato("compare", *arguments).is_one_line(*words)


def test_runs_pairs_time_and_epsilon_are_shown_before_anything_runs(sfumato, monkeypatch):
    grids = []
    flow = ModuleType("flows.compare")
    flow.compare_planned = lambda grid, cells, **how: grids.append(grid)
    monkeypatch.setitem(sys.modules, "flows.compare", flow)
    monkeypatch.setattr("flows.cli.compare.show", lambda comparison: None)
    shown = sfumato("compare", "--method", "dp-sgd", "--pairs", "votes,judge", "--seeds", "0, 1", "--yes", *ONE_STEP)
    assert shown.code == 0, shown.err
    assert shown.out.startswith("6 runs: 3 variants in 2 pairs, epsilon of the settings, seeds 0,1")
    assert "time: about" in shown.out and "cost: epsilon" in shown.out
    assert [pair.part for pair in grids[0].pairs] == ["votes", "judge"] and grids[0].seeds == [0, 1]


def test_help_lists_every_part(sfumato, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = sfumato("compare", "--help").out
    words = " ".join(text.replace("│", " ").split())
    for name, part in ABLATIONS.items():
        assert f"{name} (" in words and part.what.split()[0] in words
