"""`deploy/`: what the compose file names is there, what it says is understood, and its services work together without Docker."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import mlflow.environment_variables
import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, Settings
from prefect.settings.legacy import _get_valid_setting_names
from prefect.utilities.templating import apply_values
from prefect.workers.base import BaseJobConfiguration

from flows.cli import main
from tasks.server.recovery import POOL
from tests import compose, postgres
from tests.compose import DEPLOY, INSIDE, ROOT, Stack, entrypoint, in_order, options, read

GIVEN = {"IMAGES": "/srv/scans"}
OTHERS = {
    "PGPASSFILE": "libpq and asyncpg",
    "PGHOST": "libpq",
    "PGUSER": "libpq",
    "POSTGRES_PASSWORD_FILE": "the entry point of PostgreSQL's image",
    "DO_NOT_TRACK": "MLflow and Prefect",
}
"""Variables that are neither ours nor Prefect's nor MLflow's, and who reads them."""
PROGRAMS = {"pg_isready": "PostgreSQL's image", "python": "every image of ours"}


@pytest.fixture(scope="module")
def stack_file() -> dict:
    """The file, filled in."""
    return read(GIVEN)


@pytest.fixture(scope="module")
def services(stack_file) -> dict:
    """Its services."""
    return stack_file["services"]


def of_ours(services: dict) -> dict:
    """Services of our own image."""
    return {name: one for name, one in services.items() if "build" in one}


# --- the compose file -------------------------------------------------------------------------------------------------


def test_the_images_must_be_named_and_everything_else_has_a_value():
    with pytest.raises(KeyError, match="set IMAGES to the folder of your images"):
        read({})
    assert "${" not in json.dumps(read(GIVEN))


def test_variables_are_filled_in_as_compose_does():
    lines = ["${A:-b}", "${A}", "${C:-d}", "a$$b", "${C-}${A:?why}"]
    assert compose.filled(lines, {"A": "1"}) == ["1", "1", "d", "a$b", "1"]
    assert compose.filled(lines[2:4], {"C": ""}) == ["d", "a$b"]


def test_everything_that_a_service_refers_to_is_there(stack_file, services):
    used = {"volumes": set(), "secrets": set(), "networks": set()}
    for name, one in services.items():
        used["secrets"] |= set(one.get("secrets", ()))
        used["networks"] |= set(one["networks"])
        named = [volume.split(":")[0] for volume in one.get("volumes", ()) if isinstance(volume, str)]
        assert not [path for path in named if "/" in path], "a folder of the machine is written in full"
        used["volumes"] |= set(named)
        for other, how in one.get("depends_on", {}).items():
            once = services[other]["restart"] == "no"
            assert how["condition"] == ("service_completed_successfully" if once else "service_healthy"), (name, other)
    for kind, names in used.items():
        assert names == set(stack_file[kind]), kind
    order = in_order(services)
    assert order.index("postgres") < order.index("databases") < order.index("mlflow") < order.index("worker")


def test_services_that_wait_for_each_other_would_be_seen():
    with pytest.raises(RecursionError):
        in_order({"a": {"depends_on": {"b": {}}}, "b": {"depends_on": {"a": {}}}})


def test_a_service_says_whether_it_is_well_or_runs_once(services):
    for name, one in services.items():
        assert ("healthcheck" in one) != (one["restart"] == "no"), name
        if "healthcheck" in one:
            kind, program, *_ = one["healthcheck"]["test"]
            assert kind == "CMD" and program in PROGRAMS, name
            assert one["restart"] == "unless-stopped"


def test_a_health_check_asks_at_the_port_at_which_the_service_listens(services):
    for name in ("prefect", "mlflow", "worker"):
        (port,) = re.findall(r"127\.0\.0\.1:(\d+)/", services[name]["healthcheck"]["test"][-1])
        spoken = json.dumps([services[name]["command"], services[name]["environment"]])
        assert re.search(rf"\b{port}\b", spoken), name
        assert not services[name].get("ports") or services[name]["ports"][0].endswith(f":{port}")


def test_ports_are_open_on_this_machine_alone_and_what_sees_private_images_has_no_way_out(stack_file, services):
    opened = [port for one in services.values() for port in one.get("ports", ())]
    assert len(opened) == 2 and all(port.startswith("127.0.0.1:") for port in opened)
    inner = {name for name, network in stack_file["networks"].items() if network and network.get("internal")}
    for name in ("postgres", "databases", "worker"):
        assert set(services[name]["networks"]) <= inner and "ports" not in services[name], name


def test_private_images_are_read_only_and_the_key_lies_apart_from_the_ledger(services):
    (images,) = [one for one in services["worker"]["volumes"] if isinstance(one, dict)]
    assert images["read_only"] is True and images["source"] == GIVEN["IMAGES"]
    assert images["bind"] == {"create_host_path": False}, "a folder that is not there is named, not made"
    places = {}
    for name, one in services.items():
        for volume in one.get("volumes", ()):
            if isinstance(volume, str):
                places.setdefault(volume.split(":")[0], set()).add(name)
    assert places["keys"] == {"worker"} and places["postgres"] == {"postgres"}
    environment = services["worker"]["environment"]
    keys, home = environment["SFUMATO_KEYS"], environment["SFUMATO_HOME"]
    mounted = {volume.split(":")[1] for volume in services["worker"]["volumes"] if isinstance(volume, str)}
    assert mounted == {keys, home} and not keys.startswith(f"{home}/")
    assert environment["SFUMATO_DATA"] == images["target"]


def test_no_password_is_in_the_file_and_each_service_gets_its_own(stack_file, services):
    for given in (stack_file, TEMPLATE, *map(values, CHARTS)):
        assert not re.search(r"://[^/@\s\"]*:[^/@\s\"]*@", json.dumps(given))
    for name, secret in stack_file["secrets"].items():
        assert secret == {"file": f"secrets/{name}"}
    for one in services.values():
        for variable, value in one.get("environment", {}).items():
            assert not re.search("password|token|secret|key$", variable.lower()) or value.startswith("/"), variable
    assert {name: set(one["secrets"]) for name, one in services.items() if name != "databases"} == {
        "postgres": {"postgres_password"},
        "prefect": {"prefect_password"},
        "mlflow": {"mlflow_password"},
        "worker": {"ledger_password"},
    }
    assert set(services["databases"]["secrets"]) == set(stack_file["secrets"])
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"deploy/secrets/", "deploy/.env"} <= set(ignored)


def known_variables() -> set[str]:
    """Whatever this program, Prefect or MLflow reads."""
    text = (ROOT / "tasks/runtime/environment.py").read_text(encoding="utf-8")
    ours = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    ours = {value for value in ours if isinstance(value, str) and value.startswith(("SFUMATO_", "MLFLOW_TRACKING"))}
    theirs = {getattr(one, "name", "") for one in vars(mlflow.environment_variables).values()}
    return ours | theirs | set(_get_valid_setting_names(Settings)) | set(OTHERS)


def test_every_variable_is_one_that_somebody_reads(services):
    known = known_variables()
    assert {"SFUMATO_HOME", "PREFECT_API_URL", "MLFLOW_TRACKING_URI"} <= known
    assert not {"SFUMATO_HOUSE", "PREFECT_API_URI", "MLFLOW_TRACKING_URL", "PREFECT_SERVER_UI_API_URI"} & known
    template = json.loads((DEPLOY / "kubernetes-job-template.json").read_text(encoding="utf-8"))
    (container,) = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]["containers"]
    named = {one["name"] for one in container["env"]}
    for one in services.values():
        named |= set(one.get("environment", {}))
    for file in ("server", "worker"):
        named |= {one["name"] for one in extra_variables(values(file))}
    assert named <= known


def test_commands_are_there_with_their_options(services):
    for name, one in of_ours(services).items():
        program, *words = one["command"]
        if program == "sfumato":
            main.load(words[0]).make_context(words[0], words[1:])
        elif program == "python":
            assert (ROOT / words[0].replace(f"{INSIDE}/", "")).is_file()
        else:
            commands = [word for word in words if not word.startswith("-")][: 2 if program == "prefect" else 1]
            shown = subprocess.run(
                [sys.executable, "-m", program, *commands, "--help"],
                capture_output=True,
                text=True,
                env={**os.environ, "COLUMNS": "200"},
            )
            assert shown.returncode == 0, (name, shown.stderr)
            listed = set(re.findall(r"(?<![\w-])--[\w-]+", shown.stdout))
            assert set(options(words)) <= listed, name
            assert "--no-such-option" not in listed


def test_the_image_for_gpus_adds_to_services_that_are_there(services):
    other = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text(encoding="utf-8"))
    assert set(other["services"]) == {"worker"} <= set(services)
    (device,) = other["services"]["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"] and other["services"]["worker"]["image"] != services["worker"]["image"]
    assert set(other["services"]["worker"]["build"]["args"]) <= arguments()


# --- the image --------------------------------------------------------------------------------------------------------


def dockerfile() -> str:
    """Its text, lines joined."""
    return (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def arguments() -> set[str]:
    """What a build may be given."""
    return set(re.findall(r"^ARG (\w+)", dockerfile(), re.MULTILINE))


def test_the_image_installs_extras_that_there_are():
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )
    defaults = dict(re.findall(r"^ARG (\w+)=(.*)$", dockerfile(), re.MULTILINE))
    assert defaults["FLOW"] == "flow" and {"flow", "flow-gpu"} <= extras
    assert set(defaults["EXTRAS"].split(",")) <= extras and {"postgres", "scale"} <= set(defaults["EXTRAS"].split(","))
    assert defaults["INDEX"] == defaults["TORCH_INDEX"] == ""
    assert dockerfile().count("-c constraints.txt") == 3


def test_the_image_holds_what_is_named_and_is_run_by_nobody_special(services):
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line[1:] for line in ignore if line.startswith("!")}
    copied = {word for line in re.findall(r"^COPY (.+)$", dockerfile(), re.MULTILINE) for word in line.split()[:-1]}
    assert next(line for line in ignore if line and not line.startswith("#")) == "*"
    assert copied - {"sfumato/__init__.py"} == sent and all((ROOT / path).exists() for path in copied)
    stages = re.split(r"^FROM ", dockerfile(), flags=re.MULTILINE)[1:]
    named = {stage.split(" AS ")[1].split()[0]: stage for stage in stages}
    for name in ("sfumato", "development"):
        assert re.findall(r"^USER (\w+)$", named[name], re.MULTILINE)[-1] == "sfumato"
    for one in of_ours(services).values():
        assert one["build"]["target"] in named and set(one["build"]["args"]) <= arguments()
        assert one["cap_drop"] == ["ALL"]
    made = re.findall(r" (/srv/\w+)", re.search(r"install -d .+$", named["base"], re.MULTILINE)[0])
    mounted = {
        volume.split(":")[1] for one in of_ours(services).values() for volume in one.get("volumes", ()) if ":" in volume
    }
    assert mounted <= set(made), "else Docker makes them, and they belong to root"
    assert entrypoint()[-1] == f"{INSIDE}/deploy/entrypoint.sh"


def test_the_devcontainer_uses_a_stage_and_a_target_that_there_are():
    given = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    build = given["build"]
    place = ROOT / ".devcontainer"
    assert (place / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert (place / build["context"]).resolve() == ROOT
    assert re.search(rf"^FROM base AS {build['target']}$", dockerfile(), re.MULTILINE)
    target = given["postCreateCommand"].removeprefix("make ")
    assert target == ".venv/.ready" and "$(VENV)/.ready" in (ROOT / "Makefile").read_text(encoding="utf-8")


# --- passwords --------------------------------------------------------------------------------------------------------


def entered(folder: Path, *command: str) -> subprocess.CompletedProcess:
    """A command behind the image's entry point."""
    environment = {"PATH": os.environ["PATH"], "SECRETS": str(folder), "PGPASSFILE": str(folder / "pgpass")}
    line = ["/bin/sh", str(DEPLOY / "entrypoint.sh"), *command]
    return subprocess.run(line, env=environment, capture_output=True, text=True)


def test_passwords_come_from_files_into_one_that_nobody_else_reads(tmp_path):
    (tmp_path / "ledger_password").write_text("a:b\\c\n")
    (tmp_path / "prefect_password").write_text("plain")
    assert entered(tmp_path, "echo", "it runs", "$HOME").stdout == "it runs $HOME\n"
    assert (tmp_path / "pgpass").read_text() == "*:*:*:ledger:a\\:b\\\\c\n*:*:*:prefect:plain\n"
    assert (tmp_path / "pgpass").stat().st_mode & 0o777 == 0o600
    assert entered(tmp_path, "false").returncode == 1
    outside = subprocess.run(["sh", "-c", "umask"], capture_output=True, text=True).stdout
    assert entered(tmp_path, "sh", "-c", "umask").stdout == outside, (
        "what a run writes has the rights that it has elsewhere"
    )


@pytest.mark.parametrize(("content", "named"), [(None, "no password in"), ("", "is empty"), ("\n", "is empty")])
def test_a_password_that_is_not_there_stops_with_one_line(tmp_path, content, named):
    if content is not None:
        (tmp_path / "ledger_password").write_text(content)
    stopped = entered(tmp_path, "echo", "it runs")
    assert stopped.returncode == 2 and stopped.stdout == "" and named in stopped.stderr
    assert len(stopped.stderr.splitlines()) == 1 and "new-secrets.sh" in stopped.stderr


def test_new_passwords_are_those_that_the_file_names_and_stay(tmp_path, stack_file):
    script = shutil.copy(DEPLOY / "new-secrets.sh", tmp_path)
    subprocess.run([script], check=True, capture_output=True)
    made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert set(made) == set(stack_file["secrets"]) and len(set(made.values())) == len(made)
    assert all(re.fullmatch("[0-9a-f]{48}", password) for password in made.values())
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "secrets").iterdir()} == {0o600}
    (tmp_path / "secrets/mlflow_password").unlink()
    subprocess.run([script], check=True, capture_output=True)
    again = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert {name for name in made if made[name] != again[name]} == {"mlflow_password"}


# --- Kubernetes -------------------------------------------------------------------------------------------------------

CHARTS = {
    "server": """
        global.prefect.image.repository global.prefect.image.prefectTag global.prefect.image.pullPolicy
        global.prefect.image.pullSecrets global.prefect.env
        server.basicAuth.enabled server.basicAuth.existingSecret server.loggingLevel server.uiConfig.prefectUiApiUrl
        server.env server.replicaCount server.resources.requests server.resources.limits server.livenessProbe.enabled
        server.readinessProbe.enabled server.extraEnvVarsSecret server.extraVolumes server.extraVolumeMounts server.extraArgs
        service.port service.targetPort service.type ingress.enabled ingress.host.hostname ingress.tls
        secret.create secret.name secret.host secret.port secret.username secret.database
        sqlite.enabled postgresql.enabled redis.enabled
    """,
    "worker": """
        worker.image.repository worker.image.prefectTag worker.image.pullPolicy worker.image.pullSecrets
        worker.config.workPool worker.config.workQueues worker.config.type worker.config.limit worker.config.name
        worker.config.installPolicy worker.config.http2 worker.config.queryInterval worker.config.prefetchSeconds
        worker.config.baseJobTemplate.configuration worker.config.baseJobTemplate.existingConfigMapName
        worker.apiConfig worker.selfHostedServerApiConfig.apiUrl worker.selfHostedServerApiConfig.basicAuth.enabled
        worker.selfHostedServerApiConfig.basicAuth.existingSecret worker.replicaCount
        worker.resources.requests worker.resources.limits worker.livenessProbe.enabled
        worker.extraEnvVars worker.extraEnvVarsSecrets worker.extraVolumes worker.extraVolumeMounts worker.extraArgs
        serviceAccount.create role.create rolebinding.create
    """,
}
"""Values of Prefect's charts, of many: `prefect-server` as of commit 007af1c7281f of PrefectHQ/prefect-helm, `prefect-worker` as of its
commit 8791eab4f1c0. Their charts carry no version there; one is given when a chart is packed."""


def values(chart: str) -> dict:
    """Our values for a chart."""
    return yaml.safe_load((DEPLOY / f"prefect-{chart}-values.yaml").read_text(encoding="utf-8"))


def extra_variables(given: dict) -> list[dict]:
    """Variables that values add to what a chart sets."""
    return given.get("worker", {}).get("extraEnvVars", []) + given.get("global", {}).get("prefect", {}).get("env", [])


def leaves(given: dict, known: set[str], *path: str) -> list[str]:
    """Dotted names of values, down to the names that a chart knows."""
    names = []
    for key, value in given.items():
        name = ".".join([*path, key])
        names += leaves(value, known, *path, key) if isinstance(value, dict) and name not in known else [name]
    return names


@pytest.mark.parametrize("chart", CHARTS)
def test_values_are_those_that_the_charts_know(chart):
    known = set(CHARTS[chart].split())
    named = leaves(values(chart), known)
    assert set(named) <= known and len(named) > 5
    assert leaves({"worker": {"config": {"pool": 1}}}, known) == ["worker.config.pool"]


def test_the_charts_run_the_prefect_of_the_constraints_on_the_pool_of_the_deployments():
    (version,) = re.findall(r"^prefect==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    server, worker = values("server"), values("worker")["worker"]
    assert server["global"]["prefect"]["image"]["prefectTag"].startswith(f"{version}-")
    assert worker["image"]["prefectTag"] == f"{server['global']['prefect']['image']['prefectTag']}-kubernetes"
    assert worker["config"]["workPool"] == POOL and worker["config"]["type"] == "kubernetes"
    assert server["secret"] == {"create": False, "name": "prefect-database"} and not server["ingress"]["enabled"]


TEMPLATE = json.loads((DEPLOY / "kubernetes-job-template.json").read_text(encoding="utf-8"))


def test_a_job_is_what_the_template_says_with_every_place_filled_in(services):
    chosen = {"env": {"A": "b"}, "command": "prefect flow-run execute", "gpus": 1, "name": "run", "labels": {}}
    defaults = BaseJobConfiguration._get_base_config_defaults(TEMPLATE["variables"]["properties"])
    manifest = apply_values(TEMPLATE["job_configuration"]["job_manifest"], {**defaults, **chosen})
    assert "{{" not in json.dumps(manifest)
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1 and container["image"] == services["worker"]["image"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    places = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    given = {one["name"]: one["value"] for one in container["env"]}
    worker = services["worker"]["environment"]
    for name in ("SFUMATO_HOME", "SFUMATO_KEYS", "SFUMATO_DATA", "SFUMATO_LEDGER", "MLFLOW_TRACKING_URI", "PGPASSFILE"):
        assert given[name] == worker[name], "as in the compose file"
    assert (
        places[given["SFUMATO_DATA"]] is True
        and places[given["SFUMATO_KEYS"]] is places[given["SFUMATO_HOME"]] is False
    )


def test_every_place_of_the_template_is_a_variable_and_every_variable_has_one():
    named = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(TEMPLATE["job_configuration"])))
    assert named == set(TEMPLATE["variables"]["properties"])


@pytest.mark.slow
def test_the_deployments_can_be_made_for_a_pool_of_kubernetes(prefect_server):
    """Prefect's server takes the template, and `prefect deploy` deploys for it, as the page says."""
    api, name = PREFECT_API_URL.value(), "sfumato-kubernetes"
    with SyncPrefectClient(api) as client:
        pool = client.create_work_pool(WorkPoolCreate(name=name, type="kubernetes", base_job_template=TEMPLATE))
        assert pool.base_job_template == TEMPLATE
        command = ["prefect", "--no-prompt", "deploy", "--name", "moments", "--pool", name]
        environment = {**os.environ, "PREFECT_API_URL": api, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        deployment = client.read_deployment_by_name("synthesize/moments")
        assert deployment.work_pool_name == name and deployment.entrypoint == "flows.deployments.moments"
        client.delete_deployment(deployment.id)
        client.delete_work_pool(name)


# --- all of it, without Docker ----------------------------------------------------------------------------------------

TINY = {
    "data": {"share": 0.1395, "glyphs_per_class": 20},
    "privacy": {"epsilon": 3, "delta": 1e-3},
    "network": {"width": 32},
    "pretraining": {"steps": 20},
    "generation": {"images": 20},
    "rehearsal": {"images": 20, "nearer": 1e9, "survives": 0},
    "evaluation": {"images": 20, "baseline": False, "resamples": 20},
}
QUICK = {"PREFECT_WORKER_QUERY_SECONDS": "1"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """The services as processes, up and healthy, on a PostgreSQL that asks for passwords."""
    if reason := postgres.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("compose")
    subprocess.run([shutil.copy(DEPLOY / "new-secrets.sh", folder)], check=True, capture_output=True)
    secrets, port = folder / "secrets", compose.free_port()
    password = (secrets / "postgres_password").read_text()
    server = postgres.Server("postgres", password=password, port=port)
    server.start()
    made = Stack(folder, port, secrets, QUICK)
    try:
        made.up(leave={"postgres"})
        yield made
    finally:
        made.down()
        server.remove()


def code() -> set[str]:
    """Files of the checkout but for what Python and tools leave there."""
    listed = subprocess.check_output(
        ["git", "ls-files", "--others", "--modified", "--exclude-standard"], cwd=ROOT, text=True
    )
    return set(listed.splitlines())


@pytest.mark.slow
def test_a_run_is_deployed_carried_out_paid_for_and_shown(stack):
    before = code()
    with SyncPrefectClient(stack.here("worker", "http://prefect:4200/api")) as client:
        names = {one["name"] for one in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]}
        until(lambda: names <= {one.name for one in client.read_deployments()}, stack)
        deployment = client.read_deployment_by_name("synthesize/empirical-denoiser")
        parameters = {"settings": TINY, "licence": "CC0-1.0", "publish_to": "."}
        run = client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
        until(lambda: client.read_flow_run(run.id).state.is_final(), stack)
        state = client.read_flow_run(run.id).state
        assert state.is_completed(), (state.message, stack.log("worker"))
        name = client.read_flow_run(run.id).name
    assert "digits\nspent in all: epsilon 2.99" in stack.run("worker", "sfumato", "ledger", "show")
    assert "chain whole, signed by key" in stack.run("worker", "sfumato", "ledger", "verify")
    assert not list((stack.folder / "srv/home").glob("ledger.db*")), "the ledger is in PostgreSQL"
    assert list((stack.folder / "srv/keys").iterdir()), "its key is not"
    shown = json.loads(stack.run("worker", "sfumato", "show", "latest", "--json"))
    assert shown["run"] == name and Path(shown["published"]).is_relative_to(stack.folder / "srv/home")
    client = mlflow.MlflowClient(tracking_uri=stack.here("worker", "http://mlflow:5000"))
    (experiment,) = client.search_experiments(filter_string="name = 'sfumato'")
    runs = {one.data.tags["mlflow.runName"]: one for one in client.search_runs([experiment.experiment_id])}
    assert runs[name].info.artifact_uri.startswith("mlflow-artifacts:/")
    files = {file.path for file in client.list_artifacts(runs[name].info.run_id)}
    assert "report.html" in files
    assert list((stack.folder / "srv/mlflow").rglob("report.html")), "in MLflow's own volume"
    assert code() == before, "nothing is written to the checkout, which the image's user may not"


@pytest.mark.slow
def test_the_pages_come_from_a_folder_that_the_user_of_the_image_owns(stack):
    pages = stack.here("prefect", "http://prefect:4200")
    with urllib.request.urlopen(f"{pages}/ui-settings", timeout=30) as answer:
        assert json.load(answer)["api_url"] == f"{pages}/api"
    with urllib.request.urlopen(f"{pages}/", timeout=30) as answer:
        assert b"<html" in answer.read()
    assert list((stack.folder / "srv/prefect/pages").rglob("*.js"))


@pytest.mark.slow
def test_the_databases_are_brought_up_to_date_and_nobody_enters_that_of_another(stack):
    with_new = "a new:one\\"
    (stack.secrets / "ledger_password").write_text(with_new)
    try:
        assert "ledger: role and database are there" in stack.run(
            "databases", "python", f"{INSIDE}/deploy/databases.py"
        )
    finally:
        stack.start("worker", ["true"]).wait()  # writes its file of passwords again, as a restart does
    assert "digits\nspent in all" in stack.run("worker", "sfumato", "ledger", "show")
    look = "import psycopg; psycopg.connect('host=127.0.0.1 port={} user={} dbname={}')"
    stack.run("prefect", "python", "-c", look.format(stack.postgres, "prefect", "prefect"))
    for user, database, why in (("prefect", "ledger", "permission denied"), ("ledger", "ledger", "no password")):
        process = stack.start("prefect", ["python", "-c", look.format(stack.postgres, user, database)])
        process.communicate(timeout=60)
        assert process.returncode == 1 and why in stack.log("prefect"), (user, database)


@pytest.mark.slow
def test_all_of_them_stop_when_they_are_told_to(stack):
    assert all(stack.is_healthy(name) for name in ("prefect", "mlflow", "worker"))
    codes = stack.down()
    assert codes["worker"] == 0, stack.log("worker")
    assert not stack.is_healthy("worker") and not stack.is_healthy("prefect")


def until(happens, stack: Stack) -> None:
    """Wait for something, and show the worker's log where it does not come."""
    deadline = time.monotonic() + compose.PATIENCE_SECONDS
    while not happens():
        log = (stack.folder / "srv/home/serve.log").read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline and stack.processes["worker"].poll() is None, log + stack.log("worker")
        time.sleep(0.5)
