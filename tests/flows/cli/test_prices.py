"""What a plan loads, and prices that screens keep: they show again what they showed, and bind nobody."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts.reports.odds import rounded_up
from sfumato.errors import Refused
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import Gaussian, SubsampledGaussian
from tasks import prices
from tasks.runtime.environment import where
from tests.spends import DELTA, spend

ROOT = Path(__file__).parents[3]
SLOW = {"prefect", "mlflow", "sklearn", "matplotlib", "opacus", "lightly", "faiss", "torch._dynamo", "sympy", "pandas"}
"""What a plan does without: it counts a network's work, and measures how quick this machine is."""


def test_a_plan_loads_nothing_that_judges_draws_or_runs(folder):
    assert loaded(SLOW) == []


def loaded(names, *command):
    """Which of these modules a command, by default a plan, has loaded when it ends."""
    command = command or ("plan", "rapid")
    lines = ["import sys", "from flows.cli.main import main", f"sys.argv[1:] = {command!r}", "try:", "    main()"]
    lines += ["finally:", f"    print(*sorted({names!r} & set(sys.modules)))"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def test_a_plan_shown_again_says_the_same_without_dp_accounting_and_what_is_no_price_is_not_read(sfumato, folder):
    where().home.mkdir(parents=True, exist_ok=True)
    retained, shown = where().home / prices.FILE, promised(sfumato)
    assert json.loads(retained.read_text())["prices"]
    assert loaded({"dp_accounting", "scipy.stats"}) == []
    assert promised(sfumato) == shown
    for broken in ("", "[]", "{", '{"code": "another", "prices": {}}', retained.read_text().replace("[", '["x",')):
        retained.write_text(broken)
        assert promised(sfumato) == shown


def test_totals_of_a_ledger_are_shown_again_without_dp_accounting(sfumato, folder):
    sampled = SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=10)
    where().home.mkdir(parents=True, exist_ok=True)
    with where().ledger() as ledger:
        spend(ledger, [sampled])
    shown = sfumato("status").out
    assert f"epsilon {rounded_up(accountant.epsilon([sampled], DELTA))} spent" in shown
    assert loaded({"dp_accounting", "scipy.stats"}, "status") == [] and sfumato("status").out == shown


def promised(sfumato):
    """What a plan says of its certificate."""
    shown = sfumato("plan", "rapid")
    assert shown.code == 0, shown.err
    return [line for line in shown.out.splitlines() if "differential privacy" in line or "noise multiplier" in line]


def test_a_price_that_is_kept_and_wrong_binds_nobody(folder):
    events, place = [Gaussian(noise_multiplier=1.0), Gaussian(noise_multiplier=2.0)], where()
    place.home.mkdir(parents=True, exist_ok=True)
    true = accountant.priced(events, 1e-5)
    with prices.cached_prices(place):
        assert accountant.priced(events, 1e-5) == true
    retained = json.loads((place.home / prices.FILE).read_text())
    retained["prices"] = {name: [0.001, "nobody"] for name in retained["prices"]}
    (place.home / prices.FILE).write_text(json.dumps(retained))
    with prices.cached_prices(place):
        assert accountant.priced(events, 1e-5).accountant == "nobody"
    assert accountant.priced(events, 1e-5) == true
    with place.ledger() as ledger:
        ledger.set_budget("scans", true.epsilon / 2, 1e-5)
        with pytest.raises(Refused):
            ledger.check_budget("scans", events, "add_remove", 1e-5)


def test_only_screens_and_the_plan_of_a_comparison_know_of_cached_prices():
    folders = ("flows", "tasks", "artifacts", "sfumato")
    files = {path.relative_to(ROOT).as_posix(): path for folder in folders for path in (ROOT / folder).rglob("*.py")}
    knowing = {
        name
        for name, path in files.items()
        if "cached_prices" in path.read_text() or "tasks.prices" in path.read_text()
    }
    screens = {"tasks/prices.py", "flows/cli/run.py", "flows/cli/ledger.py", "flows/cli/serve.py"}
    assert knowing == {"sfumato/privacy/accounting/accountant.py", "tasks/planning.py", *screens}
    planning = ast.parse(files["tasks/planning.py"].read_text())
    users = [
        node.name for node in planning.body if "with cached_prices(" in ast.unparse(node) and hasattr(node, "name")
    ]
    assert users == ["plan_comparison"]


def test_the_claim_that_opacus_computes_is_cached_too(folder):
    where().home.mkdir(parents=True, exist_ok=True)
    steps = {"noise_multiplier": 2.0, "sample_rate": 0.1, "steps": 10, "delta": 1e-5}
    claim = accountant.dp_sgd_epsilon(**steps, accountant="rdp")
    for _ in range(2):
        with prices.cached_prices(where()):
            assert accountant.dp_sgd_epsilon(**steps, accountant="rdp") == claim
            assert accountant.dp_sgd_epsilon(**steps, accountant="prv") != claim
    assert [name for name in json.loads((where().home / prices.FILE).read_text())["prices"] if "Opacus" in name]
