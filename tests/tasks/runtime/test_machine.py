"""The commit beside a figure is that of the program, whatever was written to the results since."""

import shutil
import subprocess

import pytest

from tasks.runtime import machine


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of two files, one of them a result."""
    if not shutil.which("git"):
        pytest.skip("no git")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    for name in ("program.py", "benchmarks/results/one.json"):
        (tmp_path / name).write_text("1")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(machine, "CHECKOUT", tmp_path)
    return tmp_path


def test_results_leave_the_commit_as_it_is(checkout):
    clean = machine.commit()
    assert len(clean) == 7
    (checkout / "benchmarks" / "results" / "one.json").write_text("2")
    (checkout / "benchmarks" / "results" / "two.json").write_text("2")
    assert machine.commit() == clean
    (checkout / "notes.txt").write_text("git does not know this file")
    assert machine.commit() == clean
    (checkout / "program.py").write_text("2")
    assert machine.commit() == f"{clean}+"


def test_a_card_names_the_whole_commit_of_the_same_program(checkout):
    whole = machine.commit(machine.WHOLE)
    assert len(whole) == 40 and whole.startswith(machine.commit())


def test_without_git_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CHECKOUT", tmp_path)
    assert machine.commit() == ""
    (tmp_path / ".git").mkdir()  # of nothing that git knows
    assert machine.commit(machine.WHOLE) == ""


def test_the_facts_name_cores_and_versions():
    facts = machine.machine_facts()
    assert facts["cores"] >= 1 and facts["torch"] and facts["memory_gib"] > 0
