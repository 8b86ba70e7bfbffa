"""Collections of one class, or without labels, on either side: every method runs to its images, and what needs classes is left out and said."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from sfumato import sources
from sfumato.images import picture
from sfumato.methods import METHODS
from tests.flows.test_own_data import TINY, run

pytestmark = pytest.mark.usefixtures("quick_judges")
OWN = {
    "rapid": ["method.extractor.steps=5"],
    "dppm": [
        "method.training.steps=2",
        "method.network.kind=refinenet",
        "method.network.width=4",
        "generation.hamiltonian.iterations=3",
    ],
    "dp-ensemble": [
        "method.members=3",
        "method.member_training.steps=2",
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
    letters = sources.load("glyphs", part="all", size=8, glyphs_per_class=12).pixels[:, 0]
    return flat(place / "scans", digits), flat(place / "letters", letters)


def short(method: str) -> list[str]:
    """Small settings for it."""
    own = OWN.get(method, [])
    set_here = {change.partition("=")[0] for change in own}
    return [*(change for change in TINY if change.partition("=")[0] not in set_here), *own]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_where_neither_side_has_labels(no_servers, sides, tmp_path, method):
    private, public = sides
    changes = [f"data.private={private}", f"data.public={public}", "data.unlabelled=both", *short(method)]
    record = run(method, changes)
    assert record.plan.facts.classes == ("unlabelled",) and record.plan.facts.public_classes == 1
    assert record.plan.generation.guidance == 0 and record.plan.judge is None
