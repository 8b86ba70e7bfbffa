"""The smallest whole run on the embedded digits, and what may be shown of a home once it is over."""

import json
from typing import Any

from artifacts.labels import Label
from artifacts.store import file_digest
from artifacts.tracking import SHAREABLE
from tasks.runtime.environment import where
from tests.examples import UNREHEARSED

TINY = [
    *("data.share=0.1395", "data.glyphs_per_class=8", "network.width=16", "network.blocks=1"),
    *("pretraining.steps=20", "pretraining.batch=32", "method.extractor.steps=3", "fine_tuning.steps=4"),
    *("generation.images=60", "generation.steps=10", "evaluation.images=60", "evaluation.resamples=20"),
    *UNREHEARSED,
]


def shared() -> dict[str, Any]:
    """The whole experiment that may be shown, run by run, once nothing INTERNAL was found in it."""
    place = where()
    store, client = place.store(), place.tracker().client()
    with place.ledger() as ledger:
        private = {entry.body["digest"] for entry in ledger.entries() if "digest" in entry.body}
    manifests = {path.name: store.manifest(path.name) for path in (store.root / "objects").iterdir()}
    banned = {digest: m["kind"] for digest, m in manifests.items() if m["label"] == Label.INTERNAL}
    secret = {sha for d in banned for sha in manifests[d]["files"].values()}
    secret -= {
        sha for d in set(manifests) - set(banned) for sha in manifests[d]["files"].values()
    }  # the same by chance
    runs = client.search_runs([client.get_experiment_by_name(SHAREABLE).experiment_id])
    for run in runs:
        assert run.data.tags["label"] in ("PUBLIC", "DP"), run.info.run_name
        if digest := run.data.tags.get("artifact"):
            assert manifests[digest]["label"] == run.data.tags["label"], run.info.run_name
        dumped = json.dumps(run.to_dictionary())
        assert not [digest for digest in {*private, *banned} if digest[:12] in dumped], run.info.run_name
        assert not [key for key in run.data.metrics if "/" in key or "readable" in key or "frechet" in key]
    files = [path for path in (place.tracker().files / SHAREABLE).rglob("*") if path.is_file()]
    for path in files:
        assert "internal" not in path.name and path.name not in ("copies.png", "ledger.json", "ledger.md"), path
        assert file_digest(path) not in secret, path
        if path.suffix in (".html", ".csv", ".json"):
            text = path.read_text(encoding="utf-8")
            assert '<body class="INTERNAL"' not in text, path
            # What is handed over says in so many words what nobody is protected from.
            assert "bundle" in path.parts or "against private images" not in text, path
            assert not [digest for digest in private if digest[:12] in text], path
    assert private and banned and files
    return {run.info.run_id: run for run in runs}
