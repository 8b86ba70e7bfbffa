"""What prefect.yaml deploys: a form for each method that says all that its settings say, editions, and the public half alone."""

from pathlib import Path

import pytest
import yaml
from prefect import Flow, flow
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import is_valid_schema, validate
from pydantic.fields import FieldInfo

from artifacts.labels import Label
from flows import deployments
from flows.deployments import changes, form_of, of_method
from flows.synthesize import synthesize
from sfumato.config import FineTuning, Section
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.named_settings import DEFAULT_PRESET, presets
from sfumato.settings import resolve
from tasks.planning import Wishes
from tasks.runtime.environment import where
from tasks.runtime.heartbeat import attended
from tasks.server.recovery import POOL
from tests.examples import UNREHEARSED

pytestmark = pytest.mark.usefixtures("quick_judges")
FILE = yaml.safe_load((Path(__file__).parents[2] / "prefect.yaml").read_text(encoding="utf-8"))
DEPLOYMENTS = {one["name"]: one for one in FILE["deployments"]}
TINY = {
    "data": {"share": 0.1395, "glyphs_per_class": 8},
    "network": {"width": 16, "blocks": 1},
    "pretraining": {"steps": 15},
    "method": {"extractor": {"steps": 3}},
    "fine_tuning": {"steps": 3},
    "generation": {"images": 40, "steps": 15},
    "evaluation": {"images": 40, "baseline": False, "resamples": 20},
    "rehearsal": {"images": 20, "nearer": 1e9, "survives": 0},
}


def flow_named(name: str) -> Flow:
    return getattr(deployments, name.replace("-", "_"))


def schema_of(name: str) -> dict:
    return flow_named(name).parameters.model_dump(by_alias=True)


def leaves(kind: type[Section], *path: str) -> dict[tuple[str, ...], FieldInfo]:
    """All settings below a section, but for the name of the method."""
    result = {}
    for name, field in kind.model_fields.items():
        inside = isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        result |= leaves(field.annotation, *path, name) if inside else {(*path, name): field}
    result.pop(("method", "name"), None)
    return result


def in_schema(schema: dict, path: tuple[str, ...]) -> dict:
    at = schema["definitions"]["settings"]
    for name in path:
        at = at["properties"][name.removesuffix("_")]  # `from_` is typed as `from`
        ref = at.get("$ref") or next((one["$ref"] for one in at.get("anyOf", []) if "$ref" in one), "")
        at = schema["definitions"][ref.split("/")[-1]] if ref else at
    return at


@pytest.mark.slow
def test_every_method_is_deployed_and_so_are_the_four_others():
    assert set(DEPLOYMENTS) == {*METHODS, "weekly", "prepare", "release", "compare"}
    for name, one in DEPLOYMENTS.items():
        result = load_flow_from_entrypoint(one["entrypoint"], use_placeholder_flow=False)
        assert isinstance(result, Flow) and one["work_pool"]["name"] == POOL and one["description"], name
        assert is_valid_schema(result.parameters.model_dump(by_alias=True)) is None
        result.validate_parameters({"run": "some"} if name == "release" else one.get("parameters", {}))
    assert all(DEPLOYMENTS[name]["entrypoint"] == f"flows.deployments.{name.replace('-', '_')}" for name in METHODS)


def test_no_schedule_is_on_before_someone_turns_it_on():
    scheduled = {name: one["schedules"] for name, one in DEPLOYMENTS.items() if "schedules" in one}
    assert set(scheduled) == {"weekly"} and all(one["active"] is False for one in scheduled["weekly"])


@pytest.mark.parametrize(
    "method", [name if name == "rapid" else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_the_form_shows_title_help_bounds_and_the_values_that_the_run_will_have(method):
    schema, start = schema_of(method), resolve(method, DEFAULT_PRESET)
    known = leaves(type(start)) | leaves(type(start.method), "method")
    shown = 0
    for path, field in known.items():
        value = start
        for name in path:
            value = getattr(value, name)
        if isinstance(value, Section):  # optional in the settings, there in the preset
            continue
        entry, shown = in_schema(schema, path), shown + 1
        assert entry["title"] and entry["description"].startswith(field.description), path
        assert (
            entry["default"] == start.model_dump(mode="json", by_alias=True)[path[0]][path[1].removesuffix("_")]
            if len(path) == 2
            else True
        ), path
        for name, key in (("ge", "minimum"), ("gt", "exclusiveMinimum"), ("le", "maximum"), ("lt", "exclusiveMaximum")):
            for bound in (getattr(part, name) for part in field.metadata if hasattr(part, name)):
                assert bound in (entry.get(key), *(one.get(key) for one in entry.get("anyOf", []))), path
    assert shown > 80
    assert "name" not in schema["definitions"]["method"]["properties"]


MOST_FIELDS, LONGEST_TITLE = 9, 20
"""Of what the form shows at first."""


@pytest.mark.parametrize("method", METHODS)
def test_the_form_begins_with_what_most_people_change_and_folds_the_rest(method):
    schema = parameter_schema(flow_named(method)).model_dump(by_alias=True)
    shown = sorted(schema["properties"], key=lambda name: schema["properties"][name]["position"])
    assert shown[:4] == ["preset", "data", "epsilon", "publish_to"] and len(shown) <= MOST_FIELDS
    titles = [one["title"] for one in schema["properties"].values()]
    assert titles[:4] == ["Preset", "Data", "Epsilon", "Publish to"]
    assert list(in_schema(schema, ())["properties"])
    assert list(schema["definitions"]["images"]["properties"]) == ["private", "public"]
    sections = {name: one for name, one in in_schema(schema, ())["properties"].items() if "anyOf" in one}
    assert len(sections) > 12
    for one in (schema["properties"]["settings"], *sections.values()):
        assert one["default"] is None and len(one["title"]) <= LONGEST_TITLE
        folded, opened = one["anyOf"]
        assert folded == {"type": "null", "title": "as it is"}
        assert schema["definitions"][opened["$ref"].split("/")[-1]]["title"] == "change"


def run_by_form(monkeypatch, name: str, **given) -> tuple:
    """What the run of a form with these values is started with: method, preset, changes."""
    starts = []
    monkeypatch.setattr(deployments.whole, "run_changed", lambda *how: starts.append(how))
    flow_named(name).fn(**flow_named(name).validate_parameters(given))
    return starts[0][:3]


def test_the_first_fields_are_short_for_settings(monkeypatch):
    given = {"preset": "dp-ldm", "data": {"private": "scans"}, "epsilon": 3, "licence": "MIT"}
    assert run_by_form(monkeypatch, "rapid", **given) == (
        "rapid",
        "dp-ldm",
        ['data.private="scans"', "privacy.epsilon=3.0", 'release.licence="MIT"'],
    )


def test_what_an_earlier_form_asked_for_is_still_what_it_was(monkeypatch):
    """A schedule that was filled in before keeps its epsilon, whatever the new field beside it begins with."""
    earlier = {"settings": {"privacy": {"epsilon": 2}, "data": {"private": "scans"}}, "another_edition": True}
    assert validate(earlier, schema_of("rapid"), raise_on_error=False) == []
    assert run_by_form(monkeypatch, "rapid", **earlier)[2] == ['data.private="scans"', "privacy.epsilon=2.0"]


def test_a_setting_that_is_given_twice_is_given_once_or_refused(monkeypatch):
    same = {"epsilon": 2, "settings": {"privacy": {"epsilon": 2}}}
    assert run_by_form(monkeypatch, "rapid", **same)[2] == ["privacy.epsilon=2.0"]
    with pytest.raises(BadInput, match="privacy.epsilon is given twice"):
        run_by_form(monkeypatch, "rapid", **{**same, "epsilon": 3})


def test_a_bound_can_be_read():
    result = in_schema(schema_of("rapid"), ("fine_tuning", "sample_rate"))["description"]
    assert result.endswith("(above 0, at most 1)")


def test_a_setting_that_python_has_no_name_for_is_filled_in_as_it_is_typed():
    form = form_of(resolve("rapid"))
    reported = changes(form.model_validate({"network": {"from": "unet/"}}), resolve("rapid"))
    assert list(reported) == ['network.from="unet/"']
    assert in_schema(schema_of("rapid"), ("network", "from"))["title"] == "From"


def test_a_choice_among_numbers_is_a_number_in_the_form_and_no_other_is_taken():
    entry = in_schema(schema_of("rapid"), ("data", "channels"))
    assert entry["type"] == "integer" and entry["default"] == 0 and "enum" not in entry
    form = form_of(resolve("rapid"))
    assert list(changes(form.model_validate({"data": {"channels": 3}}), resolve("rapid"))) == ["data.channels=3"]
    with pytest.raises(ValueError, match="0, 1 or 3"):
        form.model_validate({"data": {"channels": 2}})


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"fine_tuning": {"sample_rate": 1.5}}, True),
        ({"fine_tuning": {"sample_rat": 0.5}}, True),
        ({"privacy": {"epsilon": 0}}, True),
        ({"privacy": {"relation": "other"}}, True),
        ({"privacy": {"relation": "replace_one"}}, False),
        ({"network": {"multipliers": [1, 2, 3]}}, False),
    ],
)
def test_what_is_out_of_bounds_is_refused_before_the_run_is_made(given, wrong):
    result = validate({"settings": given}, schema_of("rapid"), raise_on_error=False)
    assert bool(result) == wrong


def test_what_is_changed_in_the_form_is_what_a_person_would_set():
    form = form_of(resolve("rapid"))
    given = {"privacy": {"epsilon": 2}, "data": {"private": "my scans: all"}, "network": {"attention": [4]}}
    reported = list(changes(form.model_validate(given), resolve("rapid")))
    assert reported == ['data.private="my scans: all"', "privacy.epsilon=2.0", "network.attention=[4]"]
    settings = resolve("rapid", changes=reported)
    assert settings.data.private == "my scans: all" and settings.network.attention == (4,)
    assert settings.fine_tuning == FineTuning(), (
        "other data than the embedded digits inherit nothing of theirs: the recipe chooses"
    )
    mine = list(changes(form.model_validate({"privacy": {"epsilon": 2}}), resolve("rapid")))
    assert resolve("rapid", changes=mine).fine_tuning != FineTuning()
    assert list(changes(form(), resolve("rapid"))) == []


@pytest.mark.parametrize(
    ("method", "preset"),
    [(name, "") for name in METHODS]
    + [pytest.param(name, "mnist-small", marks=[pytest.mark.slow] * (name != "rapid")) for name in METHODS],
)
def test_an_untouched_form_runs_the_preset(method, preset, monkeypatch):
    requested = []
    monkeypatch.setattr(deployments.whole, "run_changed", lambda *given, **named: requested.append((given, named)))
    result = flow_named(f"{method}__{preset}" if preset else method)
    form = result.parameters.definitions["settings"]
    assert form["properties"] and result is of_method(method, preset)
    result.fn()
    assert requested == [((method, preset, [], Wishes()), {})]


def test_an_unknown_flow_is_no_flow():
    with pytest.raises(AttributeError, match="no flow 'rapido'"):
        _ = deployments.rapido
    with pytest.raises(AttributeError, match="no flow 'rapid__mnist_large'"):
        _ = deployments.rapid__mnist_large
    assert "mnist-small" in presets()


def test_a_refused_run_says_why_in_one_line_and_its_caller_gets_the_error(prefect_server):
    @flow(persist_result=False)
    @attended
    def refused(why: str) -> None:
        raise BadInput(why)

    with pytest.raises(BadInput, match="no such image"):
        refused("no such image")
    state = refused("no such image", return_state=True)
    assert (state.type.value, state.name, state.message) == ("FAILED", "BadInput", "no such image")
    assert list(refused.parameters.properties) == ["why"]


@pytest.mark.slow
def test_another_edition_of_a_released_model_costs_nothing_and_has_other_images(no_servers, tmp_path):
    given = {"settings": TINY, "publish_to": str(tmp_path / "out"), "another_edition": True}
    requested = deployments.rapid.validate_parameters(given)  # as Prefect reads the form
    first, second = (deployments.rapid.fn(**requested) for _ in range(2))
    assert first.label == second.label == Label.DP and first.spent_total == second.spent_total
    assert [one.settings["generation"]["edition"] for one in (first, second)] == [1, 2]
    assert first.samples_artifact != second.samples_artifact
    made = {stage.name for stage in second.stages if not stage.cached}
    assert made == {"generate", "find-nearest", "evaluate", "check-copies"}, (
        "the model and what it is compared with are there"
    )
    assert {Path(one.published).name for one in (first, second)} == {first.run, second.run}
    assert len(list((tmp_path / "out").glob("*/labels.csv"))) == 2
    with where().ledger() as ledger:
        assert ledger.total("digits").spends == 2, "votes and fine-tuning, once"


def test_the_public_half_is_made_beforehand_and_opens_no_private_image(no_servers, tmp_path):
    given = ["data.share=0.1395", "data.glyphs_per_class=8", "network.width=16", "pretraining.steps=15"]
    given += ["method.extractor.steps=3", "generation.steps=15", *UNREHEARSED]
    deployments.prepare.fn(method="rapid", changes=given)
    with where().ledger() as ledger:
        assert ledger.entries() == []
    rest = ["fine_tuning.steps=3", "generation.images=20"]
    rest += ["evaluation.images=20", "evaluation.resamples=20", "evaluation.baseline=false"]
    record = synthesize.fn(method="rapid", changes=[*given, *rest])
    result = {stage.name for stage in record.stages if stage.cached}
    learnt = {"pretrain", "train-extractor", "build-knowledge-base", "train-classifier"}
    assert result == {"load-public", "rehearse", *learnt}
