"""Which code is in a key: what shapes a result is, what does not is not."""

import ast
import hashlib
import importlib
import itertools
import sys
import textwrap

import pytest

from sfumato.config import FEWEST_JUDGED
from sfumato.evaluation.scores import NEIGHBOURS
from sfumato.methods import METHODS
from sfumato.settings import resolve
from tasks import evaluation, generation, private, public
from tasks.runtime import caching, source_digest

STAGES = '''
"""A module of stages."""
from stagebox import helper, unused
from stagebox.helper import ask

WIDTH = 3
NAMES = ("rows", "film")

class Settings:
    """Settings of one's own."""
    depth = 2

def near(x):
    """A helper in the same file."""
    return x + 1  # one more

def work(x):
    """A stage."""
    return near(x) * WIDTH + len(NAMES) + Settings.depth + helper.half(x) + ask(x)

def other(x):
    """A stage that uses nothing of the above."""
    return x
'''
FILES = {
    "stages": STAGES,
    "helper": 'from stagebox import deep\n\ndef half(x):\n    """Half."""\n    return deep.divide(x, 2)\n\n'
    "def ask(x):\n    from stagebox import lazy\n    return lazy.answer(x)\n",
    "deep": "def divide(x, by):\n    return x / by\n",
    "lazy": "def answer(x):\n    return 42\n",
    "unused": "def nothing():\n    return 0\n",
}


def forget_sources():
    """As in a new process."""
    for cached in vars(source_digest).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """code_digest of a stage in a package of one's own, written anew for each call with the changes asked for."""
    monkeypatch.setattr(source_digest, "PROJECT", ("stagebox",))
    count = itertools.count()

    def forget():
        for name in [name for name in sys.modules if name.split(".")[0] == "stagebox"]:
            del sys.modules[name]
        forget_sources()

    def make(stage="work", before=(), **changes):
        forget()
        root = tmp_path / str(next(count))
        (root / "stagebox").mkdir(parents=True)
        (root / "stagebox" / "__init__.py").write_text("")
        for name, text in {**FILES, **changes}.items():
            (root / "stagebox" / f"{name}.py").write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(root))
            for name in before:
                importlib.import_module(f"stagebox.{name}")
            return source_digest.code_digest(getattr(importlib.import_module("stagebox.stages"), stage))

    yield make
    forget()


def changed(module, old, new):
    assert FILES[module].count(old) == 1, old
    return {module: FILES[module].replace(old, new)}


# The code


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("stages", '"""A stage."""', '"""Explained at length."""'),
        ("stages", "  # one more", "\n    # said otherwise"),
        ("stages", '"""A module of stages."""', ""),
        ("stages", '    """Settings of one\'s own."""\n', '    """Others."""\n'),
        ("stages", "def other(x):", "def unrelated():\n    return 3\n\ndef other(x):"),
        ("helper", '"""Half."""', '"""Half of x."""'),
        ("deep", "    return x / by", "    # divide\n\n    return (x / by)"),
        ("unused", "return 0", "return 0  # nothing"),
    ],
)
def test_words_and_layout_do_not_change_the_key(digest, module, old, new):
    assert digest() == digest(**changed(module, old, new))


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("stages", "return near(x) * WIDTH", "return near(x) / WIDTH"),
        ("stages", "return x + 1", "return x + 2"),
        ("stages", "WIDTH = 3", "WIDTH = 4"),
        ("stages", '("rows", "film")', '("rows", "rest")'),
        ("stages", "depth = 2", "depth = 3"),
        ("helper", "divide(x, 2)", "divide(x, 4)"),
        ("deep", "x / by", "x // by"),
        ("lazy", "42", "43"),
    ],
    ids=[
        "stage",
        "helper-here",
        "number-here",
        "names-here",
        "class-here",
        "module",
        "module-of-module",
        "lazy-module",
    ],
)
def test_code_that_the_stage_uses_does(digest, module, old, new):
    assert digest() != digest(**changed(module, old, new))


def test_a_stage_is_not_bothered_by_code_that_it_does_not_use(digest):
    assert digest("other") == digest("other", **changed("deep", "x / by", "x // by"))
    assert digest("other") == digest("other", **changed("stages", "WIDTH = 3", "WIDTH = 4"))


def test_the_key_does_not_depend_on_what_happens_to_be_imported(digest):
    assert digest() == digest(before=["lazy"]) == digest(before=["unused", "deep"])


def test_a_module_that_is_not_ours_is_not_read(digest, monkeypatch):
    monkeypatch.setattr(source_digest, "BOOKKEEPING", ("stagebox.deep",))
    assert digest() == digest(**changed("deep", "x / by", "x // by"))


def test_the_digest_of_a_module_drops_comments_and_docstrings_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    texts = {
        "plainly": "def f(x):\n    return x\n",
        "wordily": '"""Purpose."""\n\n# why\n\n\ndef f(x):\n    """What."""\n    return x  # x\n',
        "otherwise": "def f(x):\n    return -x\n",
    }
    for name, text in texts.items():
        (tmp_path / f"digest_{name}.py").write_text(textwrap.dedent(text))
    plainly, wordily, otherwise = (source_digest.module_digest(f"digest_{name}") for name in texts)
    assert plainly == wordily != otherwise


def followed(stage, extra, monkeypatch) -> set[str]:
    """The modules whose code is in the key of a stage."""
    seen = set()
    monkeypatch.setattr(source_digest, "module_digest", lambda name: seen.add(name) or name)
    source_digest.code_digest.__wrapped__(stage.fn, frozenset(extra))
    return seen


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "stage", [private.fine_tune, generation.generate, generation.generate_privately], ids=lambda stage: stage.name
)
def test_a_methods_own_file_is_in_the_key_and_no_other_methods(name, stage, monkeypatch):
    (module,) = caching.method_modules(resolve(name))
    assert module == METHODS[name].module
    seen = followed(stage, {module}, monkeypatch)
    assert {m.module for m in METHODS.values()} & seen == {module}
    assert {"sfumato.networks.build", "sfumato.diffusion.schedule", "artifacts.serialization"} <= seen


def test_no_method_is_in_the_key_of_a_public_stage(monkeypatch):
    seen = followed(public.pretrain, (), monkeypatch)
    assert not {m.module for m in METHODS.values()} & seen and "sfumato.training" in seen


def test_the_mechanism_is_in_the_key_of_what_it_pays_for(monkeypatch):
    seen = followed(private.fine_tune, (), monkeypatch)
    assert {"sfumato.privacy.mechanisms", "sfumato.privacy.engine.dp_sgd", "sfumato.privacy.engine.clipping"} <= seen


PAID = (
    *(private.count_classes, private.take_votes, private.noise_once, private.train_phase_one, private.fine_tune),
    *(private.train_plainly, private.train_member, generation.generate_privately),
)


@pytest.mark.parametrize("paid", PAID, ids=lambda paid: paid.name)
def test_what_keeps_books_or_declares_is_in_the_key_of_nothing_that_is_paid_for(paid):
    """The frame of a stage, its settings, kinds, labels, store and ledger may all change without anyone paying again."""
    seen = source_digest.code_behind(paid.fn, frozenset({"sfumato.methods.rapid"}))[1]
    assert not [name for name in seen if not source_digest._ours(name)]
    assert {"sfumato.privacy.door", "sfumato.images", "tasks.terms"} <= seen, (
        "what opens the door and reads stays in it"
    )


WINGS = {
    "sfumato.privacy.ledger.balance": False,
    "sfumato.privacy.accounting.pld": False,
    "tasks.runtime.locks": False,
    "tasks.runtime.checkpoints": False,
    "artifacts.reports.run": False,
    "artifacts.model": False,
    "sfumato": False,
    "sfumato.released": False,
    "sfumato.formats": True,
    "sfumato.stored_parts": True,
    "sfumato.privacy.engine.clipping": True,
    "sfumato.privacy.mechanisms": True,
    "sfumato.privacy.noise": True,
}
"""Modules, and whether a line in them makes a run pay again."""


@pytest.mark.parametrize(("module", "pays"), WINGS.items())
def test_a_line_in_a_wing_makes_a_run_pay_again_where_it_shapes_a_result(module, pays, monkeypatch):
    stages, read = (
        (private.fine_tune.fn, private.take_votes.fn, generation.generate_privately.fn),
        source_digest._source,
    )
    before = [source_digest.code_digest.__wrapped__(one) for one in stages]
    edit = {module: read(module) + b"\nEDITED = 1\n"}
    monkeypatch.setattr(source_digest, "_source", lambda name: edit.get(name) or read(name))
    for cached in (source_digest._summary, source_digest._tree):
        monkeypatch.setattr(source_digest, cached.__name__, cached.__wrapped__)
    after = [source_digest.code_digest.__wrapped__(one) for one in stages]
    assert (before[0] != after[0]) == pays and (pays or before == after)


@pytest.fixture
def parsed(tmp_path, monkeypatch):
    """The sources parsed since, in a home of one's own, each time as in a new process."""
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))
    parsed, read = [], source_digest._read

    def digest():
        forget_sources()
        parsed.clear()
        return source_digest.code_digest(private.fine_tune.fn)

    monkeypatch.setattr(source_digest, "_read", lambda tree: parsed.append(tree) or read(tree))
    yield digest, parsed
    forget_sources()


def test_a_second_process_parses_no_source_again_and_finds_the_same(parsed, tmp_path):
    digest, sources = parsed
    first = digest()
    assert len(sources) > 50 and (tmp_path / source_digest.FILE).exists()
    assert digest() == first and not sources


def test_what_is_hashed_is_what_is_parsed(parsed, tmp_path, monkeypatch):
    """A file that is edited while a process runs: its digest is that of the text that this process saw first, in every key."""
    (tmp_path / "edited_meanwhile.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    source_digest._tree("edited_meanwhile")
    (tmp_path / "edited_meanwhile.py").write_text("X = 2\n")
    first = source_digest.module_digest("edited_meanwhile")
    known = source_digest._known(tmp_path).summaries
    new = hashlib.sha256(f"{sys.version_info[:2]}\n".encode() + b"X = 2\n").hexdigest()
    assert new not in known and first in {one.digest for one in known.values()}


def test_a_changed_source_is_read_again_and_alone(parsed, monkeypatch):
    digest, sources = parsed
    first, read = digest(), source_digest._source
    edit = {"sfumato.privacy.noise": read("sfumato.privacy.noise") + b"\nEDITED = 1\n"}
    monkeypatch.setattr(source_digest, "_source", lambda name: edit.get(name) or read(name))
    source_digest._tree.cache_clear()
    assert digest() != first and len(sources) == 1
    source_digest._tree.cache_clear()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"a": 1}', '{"a": ["x", "y"]}'])
def test_a_damaged_file_of_digests_is_made_again(parsed, tmp_path, damage):
    digest, sources = parsed
    first = digest()
    (tmp_path / source_digest.FILE).write_text(damage)
    assert digest() == first and len(sources) > 50
    assert digest() == first and not sources, "the file is whole again"


def test_a_home_that_cannot_be_written_to_costs_time_alone(parsed, tmp_path):
    digest, sources = parsed
    (tmp_path / source_digest.FILE).mkdir()
    assert digest() == digest() and len(sources) > 50


def test_digests_out_of_use_do_not_pile_up(parsed, tmp_path, monkeypatch):
    digest, _ = parsed
    digest()
    known = source_digest.SUMMARIES.validate_json((tmp_path / source_digest.FILE).read_bytes())
    others = {f"old-{number}": source_digest.SourceSummary("0", [], []) for number in range(10)}
    lost = dict(list(known.items())[1:])
    (tmp_path / source_digest.FILE).write_bytes(source_digest.SUMMARIES.dump_json({**lost, **others}))
    monkeypatch.setattr(source_digest, "MOST_KNOWN", len(known))
    digest()
    assert source_digest.SUMMARIES.validate_json((tmp_path / source_digest.FILE).read_bytes()) == known


def test_modules_that_only_declare_hold_no_loop_and_no_tensor():
    """Settings, plans, events and kinds: a field that shapes a result must reach the key by its value."""
    for name in source_digest.DECLARATIONS:
        tree = source_digest._tree(name)
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.While)], name
        imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        assert not imported & {"torch", "numpy"}, name


def test_the_fewest_images_are_one_more_than_the_neighbours():
    """The number stands twice, so that the settings are not in the key of what is judged."""
    assert FEWEST_JUDGED == NEIGHBOURS + 1
    assert "sfumato.evaluation.scores" in source_digest.code_behind(evaluation.evaluate.fn)[1]
