"""The architecture, read from the source: who may import whom, who may open the door, and what is nowhere.

Every rule is a function from a file to the complaints about it. A rule is run over the whole tree, and over snippets
that break it, so that a rule which sees nothing is found out too.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sfumato.methods import METHODS
from tasks.record import BASELINE_METHOD
from tests.source_code import FOLDERS, ROOT, Source, attributes, imports, in_folder, names, nodes, source, texts, tree

ORCHESTRATION = {"prefect", "mlflow", "typer", "rich", "fastapi"}
COMPUTING = {"numpy", "torch", "faiss", "opacus", "lightly", "scipy", "sklearn"}
LONGEST_FILE = 750

FLOORS = [
    {"sfumato.errors", "sfumato.marks", "sfumato.progress", "sfumato.resuming", "sfumato.verify_card"},
    {"sfumato.config", "sfumato.data_settings", "sfumato.edm_levels", "sfumato.network_settings", "sfumato.section"},
    {
        "sfumato.diffusion",
        "sfumato.networks",
        "sfumato.evaluation",
        *("sfumato.images", "sfumato.image_folder", "sfumato.degraded"),
        "sfumato.turns",
        "sfumato.class_shares",
        "sfumato.rehearsal_findings",
        "sfumato.costs",
        "sfumato.held_out",
    },
    {
        "sfumato.sources",
        *("sfumato.sources.glyphs", "sfumato.sources.shapes"),
        *("sfumato.adapters", "sfumato.training"),
        "sfumato.backbone",
        "sfumato.judge",
        *("sfumato.alignment", "sfumato.covariances", "sfumato.partition"),
        "sfumato.latents",
        "sfumato.formats",
        "sfumato.retrieval",
    },
    {"sfumato.privacy"},
    {"sfumato.methods", "sfumato.label_rows"},
    {"sfumato.settings", "sfumato.named_settings", "sfumato.inventory"},
    {
        "sfumato.drawing",
        *("sfumato.central", "sfumato.distillation", "sfumato.embedding", "sfumato.evolution"),
        *(
            "sfumato.fourier",
            "sfumato.matching",
            "sfumato.rates",
        ),
        *("sfumato.clusters", "sfumato.selection"),
        *(
            "sfumato.default_public",
            "sfumato.own_releases",
            "sfumato.perceptual",
            "sfumato.preflight",
            "sfumato.pretrained",
        ),
        *("sfumato.recipe", "sfumato.rehearsal"),
        *("sfumato.stored_parts", "sfumato.unfit_settings", "sfumato.variation"),
    },
    {"sfumato.released", "sfumato.continuations", "sfumato.generate", "sfumato.mlflow_model", "sfumato.__main__"},
]
"""The floors inside the library, lowest first; a module rests on its own floor and on those below."""
WINGS = [
    {"sfumato.privacy.accounting", "tasks.runtime"},
    {"sfumato.privacy.exact", "sfumato.privacy.noise", "sfumato.privacy.units", "sfumato.privacy.refusals"},
    {"sfumato.privacy.engine"},
    {"sfumato.privacy.ledger"},
    {"sfumato.privacy.door"},
    {"sfumato.privacy.mechanisms", "sfumato.privacy.shards", "tasks.server"},
    {"sfumato.privacy.auditing"},
]
"""What lies inside a floor, lowest first; a wing knows itself and those below. What is named nowhere lies above all of them."""
APART = {("sfumato.privacy.ledger", "sfumato.privacy.engine"), ("tasks", "tasks.server")}
"""Who must not know whom, whatever the order: books know nothing of gradients, and only flows know of the server."""
VALUE_TYPES = {"Access", "Payment", "PrivateSet"}
"""Names of the door that open nothing."""
OPENERS = {
    "sfumato/privacy/mechanisms.py": {"spending", "joining", "note_look", "Visit"},
    "sfumato/privacy/auditing/looks.py": {"looking", "inspecting"},
    "tasks/checks.py": {"check_in"},
    "sfumato/privacy/shards.py": {"looking"},
}
"""Who may open the door, and how."""
READERS = {
    "sfumato/privacy/door.py": "the door itself",
    "tasks/public.py": "public images",
}
"""Who may decode a source of images."""
METHOD_NAMERS = {
    "sfumato/methods/__init__.py": "the list of methods",
    "sfumato/recipe/advice.py": "which one was better on measured sets, as advice",
    "sfumato/methods/dppm.py": "its mechanism 'dp_sgd' is the engine, not the method of that name",
    "tasks/record.py": f"{BASELINE_METHOD!r} is the baseline that every run is compared with",
}
"""Who may name a method besides its own file."""
ENVIRONMENT = {
    "tasks/runtime/environment.py": "the places",
    **dict.fromkeys(("tasks/server/serve.py", "tasks/server/embedded.py"), "hand it on to the servers that they start"),
    "artifacts/tracking.py": "switches telemetry off before MLflow is imported",
}
MLFLOW = {
    **{"artifacts/tracking.py": "all that is said to MLflow", "artifacts/flavour.py": "the form of a model"},
    "tasks/server/serve.py": "starts its server",
    "tasks/runtime/environment.py": "its address in the environment, its folder in the home",
}
CLOCKS = {
    "sfumato/recipe/probe.py": {"perf_counter", "process_time"},
    "sfumato/privacy/engine/autotune.py": {"perf_counter"},
}
GENERATORS = {"sfumato/privacy/noise.py": "keys the cipher, and fills a generator's state, from the operating system"}
MASKS = {
    "sfumato/privacy/engine/repeating.py": "lets a network draw the same dropout masks twice; noise never comes from that state"
}
SEEDED = {
    "sfumato/privacy/auditing/looks.py": "the seed of the reader, which adds no noise and whose scores are INTERNAL",
}
JUDGES = {
    "sfumato/privacy/auditing/looks.py": "measures",
    "sfumato/privacy/auditing/findings.py": "holds it",
    "sfumato/privacy/auditing/data_profile.py": "measures how near private images lie to each other",
    "sfumato/preflight.py": "says what is too little to measure",
    "sfumato/recipe/estimate.py": "counts how long judging takes, and sees no score",
    "tasks/evaluation.py": "keeps what was measured, after the last image is drawn",
    "tasks/audit.py": "keeps what was measured of a finished run",
    "tasks/stopped_sampling.py": "draws a picture of a finished run, and measures nothing",
    "tasks/data_profile.py": "keeps what was measured before any run",
    "tasks/record.py": "writes it down",
    "sfumato/rehearsal.py": "measures public images alone",
    "artifacts/record.py": "holds it",
    "artifacts/reports/plain_words.py": "says it",
    **dict.fromkeys((f"artifacts/reports/{page}.py" for page in ("run", "audit", "comparison")), "shows it"),
    "artifacts/reports/differences.py": "subtracts it",
}
"""Who may know what was measured against private images: nobody who trains, draws or pays."""
BLIND = {"sfumato.evaluation.classifier", "sfumato.evaluation.effort"}
"""What of the evaluation measures nothing: one trains a network on the images that it is given, one reckons how long judging takes."""
IDLE = {
    ("sfumato/progress.py", "silent"): "the progress callback that shows nothing",
    ("flows/cli/main.py", "_whole"): "holds the option --version, whose own callback answers",
}
TORCH = {
    "tasks/runtime/artifact.py": {"device", "cuda", "get_num_threads", "set_num_threads"},
    "tasks/runtime/memory.py": {"cuda"},
    "tasks/runtime/run.py": {"device"},
    "tasks/runtime/locks.py": {"device"},
}
"""What of torch a task may touch: where to compute, never what."""


# --- the rules --------------------------------------------------------------------------------------------------------


def arrows(file: Source) -> Iterator[str]:
    """flows -> tasks -> {artifacts, sfumato}, artifacts -> sfumato, never back; no relative imports."""
    for result in imports(file):
        top = result.module.split(".")[0]
        if top in FOLDERS and top not in FOLDERS[file.path.split("/")[0]]:
            yield f"line {result.line} imports {result.module}"
        if not top:
            yield f"line {result.line} is a relative import"


def no_orchestrator(file: Source) -> Iterator[str]:
    """Library and artifacts know no orchestrator; MLflow alone is known to the artifacts."""
    if in_folder(file, "sfumato", "artifacts"):
        for result in imports(file):
            if result.module.split(".")[0] in ORCHESTRATION and file.path not in MLFLOW:
                yield f"line {result.line} imports {result.module}"


def no_environment(file: Source) -> Iterator[str]:
    """The environment is read where the places are, and in no other file."""
    if file.path not in ENVIRONMENT:
        for name, line in attributes(file):
            if name.startswith(("os.environ", "os.getenv", "os.putenv")):
                yield f"line {line} uses {name}"
        for result in imports(file):
            if result.module == "os" and result.name in ("environ", "getenv"):
                yield f"line {result.line} imports {result.name}"


def no_clock(file: Source) -> Iterator[str]:
    """The library does not know what time it is."""
    if in_folder(file, "sfumato"):
        allowed = CLOCKS.get(file.path, set())
        for result in imports(file):
            if (
                result.module in ("time", "datetime")
                and result.name != "timedelta"
                and not (allowed and not result.name)
            ):
                yield f"line {result.line} imports {result.module}"
        for name, line in attributes(file):
            if name.startswith("time.") and allowed and name.removeprefix("time.") not in allowed:
                yield f"line {line} uses {name}"


def floors(file: Source) -> Iterator[str]:
    """A module of the library imports from its own floor and from those below."""
    if in_folder(file, "sfumato") and file.module != "sfumato":
        here = floor_of(file.module)
        if here is None:
            yield f"{file.module} is on no floor: give it one in {Path(__file__).name}"
            return
        for result, line, _ in library_imports(file):
            there = floor_of(result)
            if there is not None and there > here:
                yield f"line {line} imports {result} from a floor above"


def floor_of(module: str) -> int | None:
    """The floor of a module, by the longest name that it begins with."""
    parts = module.split(".")
    for length in range(len(parts), 1, -1):
        for number, floor in enumerate(FLOORS):
            if ".".join(parts[:length]) in floor:
                return number
    return None


def library_imports(file: Source) -> Iterator[tuple[str, int, bool]]:
    """Modules of the library that a file imports, with the line, and whether inside a function."""
    modules = {other.module for other in tree()}
    for result in imports(file):
        if result.module.split(".")[0] == "sfumato":
            child = f"{result.module}.{result.name}"
            yield child if child in modules else result.module, result.line, result.late


def wings(file: Source) -> Iterator[str]:
    """Inside a floor nothing imports upwards, books know nothing of gradients, and stages nothing of the server."""
    here = wing_of(file.module)
    modules = {other.module for other in tree()}
    for result in imports(file):
        child = f"{result.module}.{result.name}"
        there = child if child in modules else result.module
        same = there.split(".")[:1] == file.module.split(".")[:1] and there.startswith(("tasks", "sfumato.privacy"))
        if same and here is not None and (wing_of(there) is None or wing_of(there) > here):
            yield f"line {result.line} imports {there} from a wing above"
        for one, other in APART:
            inside = file.module.startswith(f"{one}.") and not file.module.startswith(f"{other}.")
            if inside and f"{there}.".startswith(f"{other}."):
                yield f"line {result.line} imports {there}, which {one} must not know"


def wing_of(module: str) -> int | None:
    """The place of a module among the wings; None for what lies above them."""
    return next(
        (number for number, wing in enumerate(WINGS) for name in wing if f"{module}.".startswith(f"{name}.")), None
    )


def door(file: Source) -> Iterator[str]:
    """Only mechanisms, looks, the training of shards and the check open the door, each in its own way; others may know its value types."""
    allowed = VALUE_TYPES | OPENERS.get(file.path, set())
    for result in imports(file):
        if result.module == "sfumato.privacy.door" and result.name not in allowed:
            yield f"line {result.line} imports {result.name or 'all'} of the door"
        if (result.module, result.name) == ("sfumato.privacy", "door"):
            yield f"line {result.line} imports the door as a whole"


def readers(file: Source) -> Iterator[str]:
    """Only the door, and the stage that reads public images, decode a source."""
    if file.path in READERS or in_folder(file, "sfumato/sources"):
        return
    kinds = {other.module.split(".")[2] for other in tree() if other.module.startswith("sfumato.sources.")}
    reading = {"load", "inspect", "source_digest", "stored_pictures", "open_source", "open_one", *kinds}
    reading |= {"Together", "inspect_together"}
    aliases = {result.bound for result in imports(file) if f"{result.module}.{result.name}" == "sfumato.sources"}
    for name, line in attributes(file):
        if name.split(".")[0] in aliases and name.split(".")[1] in reading:
            yield f"line {line} calls {name}"
    for result in imports(file):
        inside = result.module.startswith("sfumato.sources.")
        if inside or (result.module == "sfumato.sources" and result.name in reading):
            yield f"line {result.line} imports {result.name}"


ORDINARY = {"moments"}
"""Methods that are called what the stage is called that all of them may have: such a word names no method, an import does."""


def no_method_name(file: Source) -> Iterator[str]:
    """A method is named in its own file, in the list of methods and in presets; everything else asks the plan."""
    imported, written = list(imports(file)), [(t, t.replace("`", " ").split(), line) for t, line in texts(file)]
    for name, method in METHODS.items():
        if file.module == method.module or file.path in METHOD_NAMERS:
            continue
        for result in imported:
            if method.module in (result.module, f"{result.module}.{result.name}"):
                yield f"line {result.line} imports {method.module}"
        for text, words, line in written if name not in ORDINARY else ():
            if name in words or method.module.split(".")[-1] == text:
                yield f"line {line} names the method {name!r}: {text!r}"


def no_choice_by_scores(file: Source) -> Iterator[str]:
    """What trains, draws or pays cannot see a score, so no checkpoint is chosen by private images."""
    if file.path not in JUDGES and not in_folder(file, "sfumato/evaluation"):
        yield from scores_seen(file)


def scores_seen(file: Source) -> Iterator[str]:
    """Imports through which a file could learn what was measured."""
    measuring = ("sfumato.evaluation", "sfumato.privacy.auditing.looks")
    for result in imports(file):
        if (result.module not in BLIND and f"{result.module}.{result.name}".startswith(measuring)) or result.name in (
            "Judgement",
            "Scores",
        ):
            yield f"line {result.line} imports {result.name or result.module} of {result.module}"


def no_seed(file: Source) -> Iterator[str]:
    """Noise is never seeded: no seed is taken, kept or set in the privacy folder."""
    if in_folder(file, "sfumato/privacy"):
        banned = {"manual_seed", "manual_seed_all", "default_rng", "RandomState", "initial_seed", "fork_rng"}
        banned |= set() if file.path in GENERATORS else {"seed", "set_state"}
        banned |= set() if file.path in MASKS else {"set_rng_state"}
        for node in nodes(file):
            if isinstance(node, ast.Attribute) and node.attr in banned:
                yield f"line {node.lineno} calls {ast.unparse(node)}"
        for result in imports(file):
            if result.module == "random":
                yield f"line {result.line} imports random"
        for name, line in names(file):
            if "seed" in name.lower() and file.path not in SEEDED:
                yield f"line {line} has {name}"
        for node in nodes(file):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "seed"
            if called and (node.args or node.keywords):
                yield f"line {node.lineno} seeds a generator with something"


def no_injected_noise(file: Source) -> Iterator[str]:
    """Outside the tests nobody hands a mechanism its randomness."""
    called = {result.bound for result in imports(file) if result.module == "sfumato.privacy.mechanisms"}
    whole = {
        result.bound for result in imports(file) if (result.module, result.name) == ("sfumato.privacy", "mechanisms")
    }
    for node in nodes(file):
        if isinstance(node, ast.Call):
            base = ast.unparse(node.func)
            if base in called or base.split(".")[0] in whole:
                if "source" in {keyword.arg for keyword in node.keywords}:
                    yield f"line {node.lineno} gives {base} a source of noise"
                if None in {keyword.arg for keyword in node.keywords}:
                    yield f"line {node.lineno} gives {base} keywords that cannot be read here"


def one_source(file: Source) -> Iterator[str]:
    """In the privacy folder all randomness is that of a `Source`, which one file makes, from the system's entropy."""
    for node in nodes(file):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called.split(".")[-1] == "Source" and file.path not in GENERATORS:
            yield f"line {node.lineno} makes a source of its own"
        if in_folder(file, "sfumato/privacy") and file.path not in GENERATORS:
            own = {
                "rand",
                "randn",
                "randint",
                "randperm",
                "bernoulli",
                "multinomial",
                "poisson",
                "rand_like",
                "randn_like",
            }
            drawn = called.split(".")[0] == "torch" and called.split(".")[-1] in own
            if drawn or called in ("torch.Generator", "torch.normal") or called.startswith("np.random."):
                yield f"line {node.lineno} calls {called}"


def no_tensors(file: Source) -> Iterator[str]:
    """A task loads, calls, saves and logs; it computes nothing."""
    if in_folder(file, "tasks", "flows"):
        allowed = TORCH.get(file.path, set())
        for result in imports(file):
            computes = result.module.split(".")[0] in COMPUTING
            if computes and not (allowed and (result.module, result.name) == ("torch", "")):
                yield f"line {result.line} imports {result.module}"
        for name, line in attributes(file):
            if name.split(".")[0] == "torch" and name.split(".")[1] not in allowed:
                yield f"line {line} uses {name}"


def one_tracker(file: Source) -> Iterator[str]:
    """MLflow is spoken where runs are logged, and where a model gets its form."""
    if file.path not in MLFLOW:
        for result in imports(file):
            if result.module.split(".")[0] == "mlflow":
                yield f"line {result.line} imports {result.module}"
        for name, line in attributes(file):
            if name.split(".")[0] == "mlflow":
                yield f"line {line} uses {name}"
        for text, line in texts(file):
            if "MLFLOW_" in text or "mlflow." in text or text == "mlflow":
                yield f"line {line} says {text!r}"


def nothing_unpickled(file: Source) -> Iterator[str]:
    """No file that is read can run code."""
    for result in imports(file):
        if result.module.split(".")[0] in ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"):
            yield f"line {result.line} imports {result.module}"
    for name, line in attributes(file):
        if name in (
            "torch.load",
            "torch.save",
            "torch.jit.load",
            "torch.hub.load",
            "yaml.load",
            "yaml.unsafe_load",
            "np.load",
            "numpy.load",
        ):
            yield f"line {line} uses {name}"
    for name, line in names(file):
        if name in ("eval", "exec", "allow_pickle", "__import__"):
            yield f"line {line} uses {name}"


def nothing_unfinished(file: Source) -> Iterator[str]:
    """No stub, no reminder."""
    for name, line in names(file):
        if name == "NotImplementedError":
            yield f"line {line} is not implemented"
    for number, line in enumerate(file.text.splitlines(), 1):
        if any(mark in line for mark in ("# stub", "TODO", "FIXME", "XXX")):
            yield f"line {number} is a reminder"
    classes = (node for node in nodes(file) if isinstance(node, ast.ClassDef))
    promised = {id(item) for node in classes if "Protocol" in map(ast.unparse, node.bases) for item in node.body}
    for node in nodes(file):
        if isinstance(node, ast.FunctionDef):
            if (file.path, node.name) in IDLE or id(node) in promised:
                continue
            stated = [item for item in node.body if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)]
            if all(item in stated or isinstance(item, ast.Pass) for item in node.body):
                yield f"line {node.lineno}: {node.name} does nothing"


def not_too_long(file: Source) -> Iterator[str]:
    """A file can be read in one go."""
    lines = len(file.text.splitlines())
    if lines > LONGEST_FILE:
        yield f"has {lines} lines"


def no_guessing_arguments(file: Source) -> Iterator[str]:
    """No `**kwargs` of the library is passed on unread."""
    if in_folder(file, "sfumato", "artifacts"):
        for node in nodes(file):
            if isinstance(node, ast.FunctionDef) and node.args.kwarg:
                yield f"line {node.lineno}: {node.name} takes **{node.args.kwarg.arg}"


BROKEN = [
    (arrows, "artifacts/x.py", "from tasks.runtime.environment import where"),
    (arrows, "sfumato/x.py", "import artifacts.store"),
    (arrows, "tasks/x.py", "def f():\n    from flows.cli.main import main"),
    (arrows, "tasks/x.py", "from . import where"),
    (no_orchestrator, "sfumato/x.py", "from prefect import task"),
    (no_orchestrator, "artifacts/x.py", "import prefect.context"),
    (no_orchestrator, "sfumato/privacy/x.py", "def f():\n    import mlflow"),
    (no_environment, "sfumato/x.py", "import os\nhome = os.environ['HOME']"),
    (no_environment, "flows/x.py", "from os import environ"),
    (no_clock, "sfumato/x.py", "import time"),
    (no_clock, "sfumato/x.py", "from datetime import UTC"),
    (no_clock, "sfumato/recipe/probe.py", "import time\nnow = time.time()"),
    (floors, "sfumato/config.py", "from sfumato.privacy.ledger.ledger import Ledger"),
    (floors, "sfumato/privacy/x.py", "from sfumato import settings"),
    (floors, "sfumato/diffusion/x.py", "def f():\n    from sfumato.sources import load"),
    (floors, "sfumato/sources/idx.py", "from sfumato import preflight"),
    (floors, "sfumato/attic.py", ""),
    (wings, "sfumato/privacy/ledger/x.py", "from sfumato.privacy.engine import clipping"),
    (wings, "sfumato/privacy/engine/x.py", "from sfumato.privacy import mechanisms"),
    (wings, "sfumato/privacy/accounting/x.py", "def f():\n    from sfumato.privacy.noise import system_source"),
    (wings, "tasks/runtime/x.py", "from tasks.inputs import PublicParts"),
    (wings, "tasks/private.py", "from tasks.server import serve"),
    (door, "sfumato/methods/x.py", "from sfumato.privacy.door import spending"),
    (door, "tasks/private.py", "from sfumato.privacy.door import looking"),
    (door, "sfumato/privacy/auditing/looks.py", "from sfumato.privacy.door import spending"),
    (door, "tasks/release.py", "from sfumato.privacy import door"),
    (door, "flows/x.py", "import sfumato.privacy.door"),
    (readers, "tasks/release.py", "from sfumato import sources\nsources.load('digits')"),
    (readers, "flows/x.py", "from sfumato.sources import source_digest"),
    (readers, "tasks/x.py", "from sfumato.sources.idx import read_idx"),
    (readers, "tasks/x.py", "from sfumato.sources import idx"),
    (no_method_name, "flows/x.py", "if plan.method == 'rapid': run()"),
    (no_method_name, "sfumato/x.py", "from sfumato.methods import rapid"),
    (no_method_name, "sfumato/methods/rapid.py", "from sfumato.methods.dp_sgd import plan"),
    (no_method_name, "tasks/x.py", "print('try `sfumato run dp-sgd` now')"),
    (no_choice_by_scores, "sfumato/privacy/engine/dp_sgd.py", "from sfumato.evaluation.scores import scores_of"),
    (no_choice_by_scores, "sfumato/training.py", "def f():\n    import sfumato.evaluation.fidelity"),
    (no_choice_by_scores, "sfumato/methods/x.py", "from sfumato.privacy.auditing import looks"),
    (no_choice_by_scores, "tasks/public.py", "from sfumato.evaluation import classifier, scores"),
    (no_choice_by_scores, "tasks/private.py", "from artifacts.references import Judgement"),
    (no_seed, "sfumato/privacy/x.py", "torch.Generator().manual_seed(0)"),
    (no_seed, "sfumato/privacy/x.py", "def noise(shape, seed): return shape"),
    (no_seed, "sfumato/privacy/x.py", "noise(shape, seed=3)"),
    (no_seed, "sfumato/privacy/x.py", "rng = np.random.default_rng(0)"),
    (no_seed, "sfumato/privacy/x.py", "import random"),
    (no_seed, "sfumato/privacy/x.py", "np.random.seed()"),
    (no_seed, "sfumato/privacy/x.py", "generator.set_state(saved)"),
    (no_seed, "sfumato/privacy/noise.py", "generator.seed(3)"),
    (no_injected_noise, "tasks/x.py", "from sfumato.privacy import mechanisms\nmechanisms.fine_tuned(source=g)"),
    (no_injected_noise, "tasks/x.py", "from sfumato.privacy.mechanisms import noisy_votes\nnoisy_votes(**given)"),
    (one_source, "sfumato/privacy/x.py", "noise = torch.randn(3)"),
    (one_source, "sfumato/privacy/x.py", "order = torch.randperm(3, generator=g)"),
    (one_source, "sfumato/privacy/x.py", "g = torch.Generator()"),
    (one_source, "sfumato/privacy/x.py", "z = np.random.normal()"),
    (one_source, "tasks/x.py", "s = noise.Source(bytes(32))"),
    (no_tensors, "tasks/public.py", "import torch"),
    (no_tensors, "tasks/runtime/artifact.py", "import torch\nx = torch.zeros(3)"),
    (no_tensors, "tasks/release.py", "from numpy import mean"),
    (no_tensors, "flows/x.py", "import faiss"),
    (one_tracker, "tasks/release.py", "import mlflow"),
    (one_tracker, "flows/cli/main.py", "def f():\n    from mlflow.entities import Metric"),
    (one_tracker, "sfumato/x.py", "uri = environment['MLFLOW_TRACKING_URI']"),
    (nothing_unpickled, "artifacts/x.py", "import pickle"),
    (nothing_unpickled, "artifacts/x.py", "torch.load(path)"),
    (nothing_unpickled, "sfumato/x.py", "np.load(path)"),
    (nothing_unpickled, "sfumato/x.py", "yaml.load(text)"),
    (nothing_unpickled, "sfumato/x.py", "eval(text)"),
    (nothing_unfinished, "sfumato/x.py", "def f():\n    raise NotImplementedError"),
    (nothing_unfinished, "sfumato/x.py", "def f():\n    '''Later.'''\n    pass"),
    (nothing_unfinished, "sfumato/x.py", "x = 1  # " + "TODO"),
    (not_too_long, "sfumato/x.py", "x = 1\n" * (LONGEST_FILE + 1)),
    (no_guessing_arguments, "sfumato/x.py", "def f(**kwargs):\n    return kwargs"),
]
"""A snippet that breaks each rule, in the file where it would."""
RULES = list(dict.fromkeys(rule for rule, _, _ in BROKEN))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps(rule):
    complaints = [f"{file.path}: {complaint}" for file in tree() for complaint in rule(file)]
    assert not complaints, "\n".join([rule.__doc__, *complaints])


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_rule_sees_what_breaks_it(rule, path, text):
    assert list(rule(source(path, text)))


# --- rules about the whole tree ---------------------------------------------------------------------------------------


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """One circle of imports, or an empty list."""
    done: set[str] = set()

    def walk(at: str, path: list[str]) -> list[str]:
        if at in path:
            return [*path[path.index(at) :], at]
        if at in done:
            return []
        for there in sorted(edges.get(at, ())):
            if result := walk(there, [*path, at]):
                return result
        done.add(at)
        return []

    return next((result for at in sorted(edges) if (result := walk(at, []))), [])


def test_no_circle_of_imports_anywhere():
    modules = {file.module for file in tree()}
    edges: dict[str, set[str]] = {}
    for file in tree():
        named = {(result.module, f"{result.module}.{result.name}") for result in imports(file)}
        edges[file.module] = {child if child in modules else module for module, child in named} & modules - {
            file.module
        }
    assert sum(map(len, edges.values())) > 500
    assert cycle(edges) == []


def test_a_circle_would_be_found():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_every_allowance_is_still_needed():
    """An exception that nobody uses any more must go."""
    files = {file.path: file for file in tree()}
    allowed = {*OPENERS, *READERS, *METHOD_NAMERS, *ENVIRONMENT, *MLFLOW, *CLOCKS, *SEEDED, *GENERATORS, *MASKS, *TORCH}
    allowed |= {*JUDGES, *(path for path, _ in IDLE)}
    assert allowed <= set(files)
    for path, openings in OPENERS.items():
        assert openings <= {result.name for result in imports(files[path]) if result.module == "sfumato.privacy.door"}
    for path in JUDGES:
        assert list(scores_seen(files[path])), path
    for path in ENVIRONMENT:
        assert "os.environ" in files[path].text
    for path in GENERATORS:
        assert "os.urandom(" in files[path].text
    for path in MASKS:
        assert "set_rng_state(" in files[path].text
    for path in MLFLOW:
        assert "mlflow" in files[path].text


def test_a_class_name_means_one_thing():
    homes: dict[str, set[str]] = {}
    for file in tree():
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef) and not (in_folder(file, "sfumato/methods") and node.name == "Method"):
                homes.setdefault(node.name, set()).add(file.path)
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_the_tree_is_the_one_that_was_meant():
    paths = {file.path for file in tree()}
    assert {"flows/cli/main.py", "tasks/private.py", "artifacts/store.py", "sfumato/privacy/door.py"} <= paths
    assert not [path for path in paths if not path.islower()]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_supplies_what_the_contract_asks(name):
    method = METHODS[name]
    assert method.section.model_fields["name"].default == name
    supplied = {needed for needed in ("corrupt", "loss", "draw", "draw_privately") if getattr(method, needed)}
    ways = [{"corrupt", "draw"}, {"loss", "draw"}, {"draw_privately"}]
    ways += [{"draw"}] if method.needs_moments or method.evolves or method.embeds else []
    assert any(way <= supplied for way in ways) and (method.draw_privately is None) == (method.worst_case is None)
    file = next(file for file in tree() if file.module == method.module)
    touched = {result for result, _, _ in library_imports(file)}
    inner = [f"sfumato.privacy.{part}" for part in ("door", "ledger", "mechanisms", "noise", "engine.clipping")]
    assert not [one for one in touched for part in inner if f"{one}.".startswith(f"{part}.")]


def test_presets_name_only_methods_that_there_are():
    for path in sorted((ROOT / "sfumato" / "presets").glob("*.yaml")):
        preset = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert set(preset.get("methods", {})) <= set(METHODS), path.name
        assert preset["why"] and preset["expect"], path.name


def test_sweeps_name_only_methods_that_there_are():
    for path in sorted((ROOT / "sfumato" / "sweeps").glob("*.yaml")):
        sweep = yaml.safe_load(path.read_text(encoding="utf-8"))
        variants = [text for values in sweep["axes"].values() if isinstance(values, dict) for text in values.values()]
        assert {sweep["method"], *(text.split()[0] for text in variants)} <= set(METHODS) and sweep["why"], path.name


def test_tests_can_be_read_in_one_go_too():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py")}
    assert not {path.relative_to(ROOT): lines for path, lines in lengths.items() if lines > LONGEST_FILE}


def test_only_a_priced_drawing_leaves_its_members_behind():
    """What stands behind an artifact hands no label on, so nothing but the drawing that pays may ask for that."""
    asking = {file.path for file in tree() if re.search(r"\bbehind=|\"behind\":", file.text)}
    assert asking == {"artifacts/store.py", "tasks/runtime/artifact.py", "tasks/generation.py"}
    drawing = next(file for file in tree() if file.path == "tasks/generation.py")
    users = [node.name for node in drawing.tree.body if "behind" in ast.unparse(node) and hasattr(node, "name")]
    assert users == ["generate_privately"]
