"""Collections of one class, or without labels, on either side: every method runs to its images, and what needs classes is left out and said."""

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import sfumato
from artifacts.labels import Label
from flows import audit as audit_flow
from flows.cli.main import main
from sfumato import sources
from sfumato.errors import BadInput
from sfumato.images import picture
from sfumato.methods import METHODS
from sfumato.preflight import plan_for, preflight
from sfumato.settings import resolve
from tests.flows.test_own_data import TINY, run

pytestmark = pytest.mark.usefixtures("quick_judges")
OWN = {
    "rapid": ["method.extractor.steps=5"],
    "private-evolution": [
        "method.candidates=100",
        "method.distillation.steps=5",
        "backbone.steps=5",
        "backbone.width=8",
    ],
    "dp-merf": ["method.frequencies=50", "method.training.steps=5"],
    "dp-mepf": ["method.training.steps=3", "method.training.batch=20", "backbone.steps=5", "backbone.width=8"],
    "dppm": [
        "method.training.steps=2",
        "method.network.kind=refinenet",
        "method.network.width=4",
        "generation.hamiltonian.iterations=3",
    ],
    "dp-ensemble": [
        "method.members=3",
        "method.training.steps=2",
        "generation.images=20",
        "generation.steps=20",
    ],
}
"""What makes a method's run short."""


def flat(folder: Path, pixels: np.ndarray) -> Path:
    folder.mkdir(parents=True)
    for at, one in enumerate(pixels):
        picture(one[None]).save(folder / f"{at:04}.png")
    return folder


@pytest.fixture(scope="module")
def sides(tmp_path_factory) -> tuple[Path, Path]:
    """Real digits in a flat folder, and rendered letters in another."""
    place = tmp_path_factory.mktemp("flat")
    digits = (load_digits().images[:300] * 255 / 16).astype(np.uint8)
    letters = sources.load("glyphs", sources.Reading(part="all", size=8, glyphs_per_class=12)).pixels[:, 0]
    return flat(place / "scans", digits), flat(place / "letters", letters)


def short(method: str) -> list[str]:
    """Small settings for it."""
    own = OWN.get(method, [])
    set_here = {change.partition("=")[0] for change in own}
    return [*(change for change in TINY if change.partition("=")[0] not in set_here), *own]


QUICK = ("rapid", "dp-sgd", "moments")
"""Methods whose runs `make test` holds; it leaves the others' to `make test-slow`."""


@pytest.mark.parametrize(
    "method", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_every_method_runs_where_neither_side_has_labels(no_servers, sides, tmp_path, method):
    private, public = sides
    changes = [f"data.private={private}", f"data.public={public}", "data.unlabelled=both", *short(method)]
    record = run(method, changes)
    assert record.plan.facts.classes == ("unlabelled",) and record.plan.facts.public_classes == 1
    assert record.plan.generation.guidance == 0 and record.plan.judge is None
    scores = record.metrics["synthetic"]
    assert scores["kid"] is not None and "turns of letters, 4 classes" in scores["feature_extractor"]
    assert scores["readable"] is scores["logistic"] is scores["cnn"] is None
    unread = {scores["missing"][name] for name in ("readable", "logistic", "cnn")}
    assert unread == {"all images are of one class, so that there are none to tell apart"}
    report = Path(record.internal_report).read_text()
    assert "none to tell apart" in report and "names the class" not in report


@pytest.mark.slow
def test_classes_on_the_private_side_alone_are_drawn_and_read(no_servers, sides, tmp_path):
    _, public = sides
    judge = ["judge.use=weigh", "judge.steps=5", "judge.directions=8", "backbone.steps=10", "backbone.width=8"]
    record = run(
        "dp-sgd", [f"data.public={public}", "data.unlabelled=public", *judge, *short("dp-sgd")], str(tmp_path / "out")
    )
    assert len(record.plan.facts.classes) == 10 and record.plan.facts.public_classes == 1
    assert record.metrics["synthetic"]["readable"] is not None and record.label == Label.DP
    with (tmp_path / "out" / "labels.csv").open() as file:
        assert {row["class"] for row in csv.DictReader(file)} <= set("0123456789")


@pytest.mark.slow
def test_one_class_on_the_private_side_alone_finds_its_public_ones_and_is_published(no_servers, sides, tmp_path):
    private, _ = sides
    votes = ["method.votes=true", "data.unlabelled=private", "generation.classes=queried", "generation.count_noise=5"]
    record = run("rapid", [f"data.private={private}", *votes, *short("rapid")], str(tmp_path / "out"))
    assert record.plan.facts.public_classes == 52 and record.label == Label.DP
    assert "unlabelled" in (tmp_path / "out" / "README.md").read_text()
    images, labels = sfumato.load(tmp_path / "out").draw(4, seed=0)
    assert images.shape == (4, 1, 8, 8) and labels.tolist() == [0] * 4


@pytest.mark.parametrize("method", METHODS)
def test_the_recipe_plans_for_sides_without_labels(sides, method):
    private, public = sides
    changes = [f"data.private={private}", f"data.public={public}", "evaluation.features=cnn"]
    settings, facts, warnings = preflight(resolve(method, "auto", changes))
    plan = plan_for(settings, facts)
    assert plan.judge is None and sum("have no labels, so all are one class" in one for one in warnings) == 2
    assert not hasattr(settings.method, "votes") or not settings.method.votes


def test_what_needs_classes_is_refused_in_one_line(sides):
    private, public = sides
    changes = [f"data.private={private}", f"data.public={public}", "data.unlabelled=both", "evaluation.features=cnn"]
    for method, change, words in [
        ("dp-sgd", "judge.use=weigh", "the private images are of 1 class, which leaves a judge nothing to learn"),
        ("rapid", "method.votes=true", "the public images are one class"),
    ]:
        with pytest.raises(BadInput, match=words) as reported:
            plan_for(*preflight(resolve(method, changes=[*changes, change]))[:2])
        assert "\n" not in str(reported.value)


def test_a_flat_folder_is_checked(no_servers, sides, monkeypatch, capsys):
    private, public = sides
    monkeypatch.setattr("sys.argv", ["sfumato", "check", str(private), "--public", str(public)])
    main()
    reported = " ".join(capsys.readouterr().out.split())
    assert (
        "300 images in 1 class;" in reported and "the private images have no labels, so all are one class" in reported
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dp-sgd", "moments"])
def test_a_run_of_one_class_is_audited(no_servers, sides, method):
    private, public = sides
    latent = [
        "latent.kind=kl",
        "latent.width=8",
        "latent.steps=5",
        "latent.perceptual=0.1",
        "backbone.width=8",
        "backbone.steps=5",
    ]
    changes = [f"data.private={private}", f"data.public={public}", "data.unlabelled=both", "evaluation.baseline=true"]
    record = run(
        method,
        [*(one for one in short(method) if "baseline" not in one), *changes, *(latent if method == "dp-sgd" else [])],
    )
    result = audit_flow.audit_run.fn(record.run, 40).audit
    assert result.bound is not None and not result.refuted and result.memberships
