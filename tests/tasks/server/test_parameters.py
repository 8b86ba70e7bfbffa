"""Parameters in prefect.yaml that a flow cannot take are one line before anything starts, and those on the pages are right."""

import inspect
import re
import subprocess
import sys

import pytest
import yaml

from flows.deployments import of_method, prepare
from sfumato.errors import BadInput
from tasks.runtime.environment import CHECKOUT
from tasks.server.parameters import OfMethod, OfPublicHalf, check_parameters


def checked(tmp_path, entrypoint="flows.deployments.rapid", schedule=None, **parameters):
    """Check one deployment with these parameters."""
    one = {"name": "weekly", "entrypoint": entrypoint, "parameters": parameters}
    one |= {"schedules": [{"cron": "0 6 * * 1", "parameters": schedule}]} if schedule else {}
    file = tmp_path / "prefect.yaml"
    file.write_text(yaml.safe_dump({"deployments": [one]}), encoding="utf-8")
    check_parameters(file)


def test_the_parameters_are_those_of_every_form():
    assert list(inspect.signature(of_method("rapid", "").fn).parameters) == list(OfMethod.model_fields)
    assert list(inspect.signature(prepare.fn).parameters) == list(OfPublicHalf.model_fields)
    check_parameters(CHECKOUT / "prefect.yaml")


def test_the_schedule_on_the_page_can_be_copied(tmp_path):
    page = (CHECKOUT / "docs/schedule.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "prefect.yaml"
    file.write_text(f"pool: &pool sfumato\ndeployments:\n{example}", encoding="utf-8")
    check_parameters(file)
    (weekly,) = yaml.safe_load(file.read_text(encoding="utf-8"))["deployments"]
    assert of_method("rapid", "").validate_parameters(weekly["parameters"])["settings"].privacy.delta == 1e-5


MISTAKES = [
    ({"epsilion": 2}, "it has the parameter 'epsilion', and takes preset, data, epsilon"),
    ({"epsilon": "2e0"}, "epsilon is the text '2e0', where a number belongs: write 2.0e+0"),
    ({"epsilon": -2}, "parameter 'epsilon' has value -2: input should be greater than 0"),
    ({"another_edition": "weekly"}, "parameter 'another_edition' has value \"weekly\": "),
    ({"data": "/srv/scans"}, "parameter 'data' has value \"/srv/scans\": "),
    ({"data": {"secret": "/srv/scans"}}, "parameter 'data.secret' has value \"/srv/scans\": "),
    ({"preset": "weekly"}, "unknown preset 'weekly'"),
    ({"settings": 3}, "parameter 'settings' has value 3: "),
    (
        {"settings": {"privacy": {"delta": "1e-5"}}},
        "settings.privacy.delta is the text '1e-5', where a number belongs: write 1.0e-5",
    ),
    (
        {"settings": {"method": {"nearest": "7"}}},
        "settings.method.nearest is the text '7', where a number belongs: write 7",
    ),
    ({"settings": {"privacy": {"delta": 2}}}, "setting 'privacy.delta' has value 2: give a number above 0 and below 1"),
    ({"settings": {"privacy": {"delta": "1e5"}}}, "setting 'privacy.delta' has value 100000.0: give a number above 0"),
    ({"settings": {"privacy": {"detla": 1e-5}}}, "unknown setting 'privacy.detla' (value 1e-05): did you mean"),
    ({"settings": {"privacy": 3}}, "setting 'privacy' has value 3: "),
    (
        {"settings": {"method": {"name": "dppm"}}},
        "settings.method.name is no parameter: the entrypoint names the method",
    ),
    (
        {"epsilon": 2, "settings": {"privacy": {"epsilon": 3}}},
        "privacy.epsilon is given twice, as 2.0 and in the settings as 3: leave one out",
    ),
]


@pytest.mark.parametrize("where", ["parameters", "schedules"])
@pytest.mark.parametrize(("parameters", "line"), MISTAKES)
def test_a_parameter_that_its_flow_cannot_take_is_named_before_its_runs_fail(tmp_path, parameters, line, where):
    given = parameters if where == "parameters" else {"schedule": parameters}
    with pytest.raises(BadInput, match=re.escape(f"prefect.yaml: the deployment 'weekly': {line}")):
        checked(tmp_path, **given)


@pytest.mark.parametrize(
    ("entrypoint", "parameters", "line"),
    [
        ("flows.deployments.rapit", {}, "unknown flow 'rapit': did you mean 'rapid'?"),
        ("flows.deployments.rapid__dgits", {}, "unknown preset 'dgits': did you mean 'digits'?"),
        (
            "flows.deployments.prepare",
            {"epsilon": 2},
            "it has the parameter 'epsilon', and takes method, preset, changes",
        ),
        ("flows.deployments.prepare", {"changes": ["privacy.detla=1"]}, "unknown setting 'privacy.detla'"),
    ],
)
def test_an_entrypoint_and_what_is_prepared_are_checked_too(tmp_path, entrypoint, parameters, line):
    with pytest.raises(BadInput, match=re.escape(line)):
        checked(tmp_path, entrypoint, **parameters)


def test_what_is_right_passes(tmp_path):
    folded = {"privacy": {"delta": 1e-5}, "network": None, "release": {"licence": "CC0-1.0"}, "data": {"name": "scans"}}
    checked(tmp_path, epsilon=2, data={"private": "/srv/scans", "public": "/srv/textures"}, settings=folded)
    checked(tmp_path, "flows.deployments.dp_sgd__mnist_small", preset="by data", settings=None, new_version=True)
    checked(tmp_path, "flows.deployments.prepare", method="dp-sgd", changes=["privacy.delta=1e-5"])
    checked(tmp_path, "flows.release.release", anything=1)


def test_a_file_that_is_not_yaml_is_one_line(tmp_path):
    (tmp_path / "prefect.yaml").write_text("deployments: [", encoding="utf-8")
    with pytest.raises(BadInput, match=r"prefect\.yaml is not YAML: [^\n]*$"):
        check_parameters(tmp_path / "prefect.yaml")


def test_the_check_imports_neither_flows_nor_what_takes_seconds():
    script = "import sys, tasks.server.parameters; print(*{'prefect', 'torch', 'flows'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=CHECKOUT).stdout == "\n"
