"""Whether the tests find known faults: each is put into a copy of the tree, alone, and the quick tests of its part must fail.

    python benchmarks/mutations.py                     # all of them, an hour or less on two cores
    python benchmarks/mutations.py --only clip,ledger  # those whose name holds one of these words
    python benchmarks/mutations.py --json found.json   # and keep what was found

A fault is a piece of text that occurs once in a file, what stands in its place, and the test files that must notice; slow tests are left
out. Ends with 1 where a fault is missed or its text is no longer there.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("sfumato", "artifacts", "tasks", "flows", "tests", "benchmarks", "docs")
FILES = (
    "pyproject.toml",
    "prefect.yaml",
    "README.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "Makefile",
    "setup.py",
    "LICENSE",
)
PATIENCE_SECONDS = 900
TESTS_FAILED = 1
"""pytest's exit code where tests ran and some failed: an error of collection or of the command line is another."""
Finding = Literal["caught", "missed", "stale", "broken"]


class Fault(NamedTuple):
    """One thing that must not go unnoticed."""

    name: str
    file: str
    old: str
    """Occurs once in the file."""
    new: str
    tests: str
    """Files and folders below `tests/`, with blanks between."""


NOISE, DOOR, MECHANISMS = "sfumato/privacy/noise.py", "sfumato/privacy/door.py", "sfumato/privacy/engine/queries.py"
CLASS_MOMENTS = "sfumato/privacy/engine/class_moments.py"
TRAINING, CLIPPING = "sfumato/privacy/engine/dp_sgd.py", "sfumato/privacy/engine/clipping.py"
ENSEMBLE = "sfumato/methods/dp_ensemble.py"
LEDGER, BALANCE, CHAIN = (f"sfumato/privacy/ledger/{name}.py" for name in ("ledger", "balance", "chain"))
OF_NOISE, OF_DOOR, OF_QUERIES = (f"sfumato/privacy/test_{name}.py" for name in ("noise", "door", "mechanisms"))
OF_TRAINING, OF_CLIPPING, OF_HEAD = (
    f"sfumato/privacy/engine/test_{name}.py" for name in ("dp_sgd", "clipping", "linear_head")
)
OF_LEDGER, OF_GATE = "sfumato/privacy/ledger/test_ledger.py", "artifacts/test_gate.py"
FAULTS = (
    # noise
    Fault(
        "noise: none is added", NOISE, "steps.add_(source.steps(value.shape, scale)).mul_(step)", "steps.mul_(step)", OF_NOISE
    ),
    Fault("noise: half of it", NOISE, "scale = noise_multiplier * reach", "scale = 0.5 * noise_multiplier * reach", OF_NOISE),
    Fault(
        "noise: rounding is not paid for",
        NOISE,
        "return norm + math.sqrt(numbers) * grid(norm, numbers)",
        "return norm",
        OF_NOISE,
    ),
    Fault("noise: coins fall twice as often", NOISE, "math.floor(rate * exact.WORD)", "math.floor(2 * rate * exact.WORD)", OF_NOISE),
    Fault("noise: two processes draw the same", NOISE, "if os.getpid() != self._process:", "if False:", OF_NOISE),
    Fault("noise: one key for all", NOISE, "return Source(os.urandom(KEY_BYTES))", "return Source(bytes(KEY_BYTES))", OF_NOISE),
    # queries
    Fault(
        "counts: no noise",
        MECHANISMS,
        "return histogram(torch.as_tensor(voters.labels), event, cells=classes, source=source)",
        "return torch.bincount(torch.as_tensor(voters.labels), minlength=classes)",
        OF_QUERIES,
    ),
    Fault(
        "counts: all records of a group count",
        MECHANISMS,
        "voters = one_of_each(images, source)\n    return histogram",
        "voters = images\n    return histogram",
        f"{OF_QUERIES} sfumato/privacy/test_units.py",
    ),
    Fault(
        "votes: no noise",
        MECHANISMS,
        "return histogram(rows * options + chosen, event, cells=classes * options, source=source).view",
        "return torch.bincount(rows * options + chosen, minlength=classes * options).view",
        OF_QUERIES,
    ),
    Fault(
        "votes: all records of a group vote",
        MECHANISMS,
        "voters = one_of_each(images, source)\n    x, y",
        "voters = images\n    x, y",
        f"{OF_QUERIES} sfumato/privacy/test_units.py",
    ),
    Fault(
        "judge: a tenth of the noise",
        MECHANISMS,
        "norm=1.0, numbers=numbers",
        "norm=0.1, numbers=numbers",
        f"{OF_QUERIES} sfumato/privacy/auditing/test_query_games.py",
    ),
    Fault("judge: divided by the true number of records", MECHANISMS, "expected=max(1, records)", "expected=max(1, len(images))", OF_HEAD),
    Fault(
        "judge: the records of a group as so many",
        MECHANISMS,
        "units_of(images, each=1)",
        "units_of(ImageSet(images.pixels, images.labels, images.classes), each=1)",
        OF_HEAD,
    ),
    Fault(
        "judge: the mean of a group without a bound",
        "sfumato/privacy/engine/linear_head.py",
        "means / means.flatten(1).norm(dim=1).clamp(min=1)[:, None, None]",
        "means",
        OF_HEAD,
    ),
    Fault(
        "moments: sums without a bound",
        CLASS_MOMENTS,
        "away = within(away, reference.radius)",
        "away = away * 1.0",
        "sfumato/privacy/test_noisy_moments.py",
    ),
    Fault(
        "moments: second moments and rounds without a bound",
        CLASS_MOMENTS,
        "return within(self.away[part].double() - centres, most)",
        "return self.away[part].double() - centres",
        "sfumato/privacy/test_noisy_moments.py",
    ),
    Fault(
        "moments: sensitivity r for r squared",
        CLASS_MOMENTS,
        "largest, seconds = residual**2, []",
        "largest, seconds = residual / 2, []",
        "sfumato/privacy/test_noisy_moments.py sfumato/privacy/auditing/test_query_games.py",
    ),
    Fault(
        "moments: every record of a group has a distance of its own",
        CLASS_MOMENTS,
        "parts = records.speaking.split(alignment.CHUNK)",
        "parts = torch.arange(len(records.y)).split(alignment.CHUNK)",
        "sfumato/privacy/test_noisy_moments.py",
    ),
    Fault(
        "moments: distances held clear of the noise of the counts",
        CLASS_MOMENTS,
        "alignment.bound_of(distances, events.distances.noise_multiplier,",
        "alignment.bound_of(distances, events.counts.noise_multiplier,",
        "sfumato/privacy/test_noisy_moments.py",
    ),
    Fault(
        "moments: noise of a round for half a record",
        CLASS_MOMENTS,
        "norm=residual, numbers=size",
        "norm=residual / 2, numbers=size",
        "sfumato/privacy/test_noisy_moments.py sfumato/privacy/auditing/test_query_games.py",
    ),
    Fault(
        "central images: records without a bound",
        MECHANISMS,
        "bounded = within(away, reference.radius)",
        "bounded = away * 1.0",
        "sfumato/privacy/test_noisy_sums.py",
    ),
    Fault(
        "central images: every member of a group counts in full",
        MECHANISMS,
        "weight = 1 / members[owner].double()",
        "weight = 1 / members[owner].double().clamp(max=1)",
        "sfumato/privacy/test_noisy_sums.py",
    ),
    Fault(
        "central images: samples at twice the rate",
        MECHANISMS,
        "source.coins((len(members),), rate)",
        "source.coins((len(members),), min(1.0, 2 * rate))",
        "sfumato/privacy/test_noisy_sums.py",
    ),
    Fault(
        "noised records: in the order of the source",
        "sfumato/privacy/engine/queries.py",
        "order = source.order(max(len(x), released))[:released]",
        "order = torch.arange(max(len(x), released))[:released]",
        OF_QUERIES,
    ),
    # training
    Fault(
        "clip: skipped",
        CLIPPING,
        "factors = (clip / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)",
        "factors = torch.ones_like(norms)",
        OF_CLIPPING,
    ),
    Fault(
        "clip: each group to the whole clip",
        CLIPPING,
        "share = clip / len(groups) ** 0.5",
        "share = clip",
        "sfumato/privacy/engine/test_clipping_rules.py",
    ),
    Fault(
        "clip: a record that is not finite counts",
        CLIPPING,
        "finite = torch.stack([value for _, value in squares]).isfinite().all(0)",
        "finite = torch.stack([value for _, value in squares]).isfinite().all(0) | True",
        OF_CLIPPING,
    ),
    Fault("training: no noise", TRAINING, "noisy = add_gaussian(total,", "noisy = total or add_gaussian(total,", OF_TRAINING),
    Fault(
        "training: noise for half the clip",
        TRAINING,
        "noise_multiplier=noise_multiplier, norm=clip, numbers",
        "noise_multiplier=noise_multiplier, norm=clip / 2, numbers",
        f"{OF_TRAINING} sfumato/privacy/auditing/test_white_box.py",
    ),
    Fault(
        "training: batches of one size",
        TRAINING,
        "return source.coins((records,), sample_rate).nonzero()[:, 0]",
        "return torch.randperm(records)[: round(records * sample_rate)]",
        OF_TRAINING,
    ),
    Fault(
        "training: other processes draw batches of one size",
        "sfumato/privacy/engine/distributed.py",
        "poisson_sample(len(units), settings.sample_rate, source)",
        "torch.randperm(len(units))[: round(len(units) * settings.sample_rate)]",
        "sfumato/privacy/engine/test_distributed.py",
    ),
    Fault(
        "training: other processes draw at the rate of the settings",
        "sfumato/privacy/mechanisms.py",
        'update={"steps": event.steps, "sample_rate": event.sample_rate})\n    with joining(',
        'update={"steps": event.steps})\n    with joining(',
        OF_QUERIES,
    ),
    Fault(
        "training: divided by the batch as it fell",
        TRAINING,
        "(noisy[name] / expected_batch)",
        "(noisy[name] / max(1, len(index)))",
        OF_TRAINING,
    ),
    Fault(
        "training: a network that mixes records",
        TRAINING,
        "    refuse_mixers(model, trainable)\n",
        "",
        f"{OF_TRAINING} sfumato/privacy/engine/test_validation.py",
    ),
    Fault(
        "training: no spot check",
        TRAINING,
        "if step == first or step in checks:",
        "if False:",
        "sfumato/privacy/engine/test_spot_check.py",
    ),
    Fault(
        "training: all records of a group are looked at",
        "sfumato/privacy/units.py",
        "    if images.groups is None:\n        return single_records(len(images), device)",
        "    if True:\n        return single_records(len(images), device)",
        "sfumato/privacy/test_units.py",
    ),
    # the door
    Fault("door: nobody writes that it opens", DOOR, "entry_label(access.ledger.opened(ticket))", '"DP"', OF_DOOR),
    Fault("door: injected noise passes for real", DOOR, "insecure=insecure,", "insecure=False,", OF_DOOR),
    Fault("door: what follows need not be borne", DOOR, "        following=access.following,\n", "", OF_DOOR),
    Fault("door: canaries in what may leave", DOOR, "if self.canaries is not None and not self.comparison:", "if False:", OF_DOOR),
    Fault(
        "door: public copies of private images", DOOR, "if any(share_a_picture", "if False and any(share_a_picture", OF_DOOR
    ),
    Fault(
        "door: what a crash took is not settled",
        DOOR,
        "        access.ledger.settle(settles)",
        "        pass",
        "sfumato/privacy/engine/test_resuming.py",
    ),
    Fault(
        "door: a person is paid for as one image",
        DOOR,
        "following=access.following,\n        unit=access.private.unit,",
        'following=access.following,\n        unit="",',
        f"{OF_DOOR} sfumato/privacy/test_units.py",
    ),
    Fault("door: an error names a private file", DOOR, "return sources.unnamed(private.source, f", "return work() if work else (f", "test_private_names.py"),
    # the ledger
    Fault(
        "ledger: reserves without a look at the budget",
        LEDGER,
        "overrun = self._overrun(entries, dataset, rest, relation, delta)\n",
        "overrun = None\n",
        OF_LEDGER,
    ),
    Fault("ledger: commits more than was reserved", LEDGER, "            if excess:\n", "            if False:\n", OF_LEDGER),
    Fault(
        "ledger: joined with other images",
        LEDGER,
        'if reserved.body["digest"] != digest:',
        "if False:",
        OF_LEDGER,
    ),
    Fault(
        "ledger: goes on beyond what was reserved",
        LEDGER,
        "if tally(allowed) - tally(events_of(reserved)):",
        "if False:",
        OF_LEDGER,
    ),
    Fault(
        "ledger: a dead process took what was surely done",
        LEDGER,
        "taken = most_taken(entries, reserved)",
        "taken = surely_taken(entries, reserved)",
        OF_LEDGER,
    ),
    Fault(
        "ledger: what is not committed costs nothing",
        BALANCE,
        "ended = [(entry, ends.get(entry.seq, entry)) for entry in entries if entry.kind in",
        "ended = [(entry, ends[entry.seq]) for entry in entries if entry.seq in ends and entry.kind in",
        OF_LEDGER,
    ),
    Fault(
        "ledger: injected noise is DP",
        BALANCE,
        'if entry.body["epsilon"] is not None and not entry.body["insecure"] else',
        'if entry.body["epsilon"] is not None else',
        f"{OF_LEDGER} {OF_DOOR}",
    ),
    Fault("ledger: a look is PUBLIC", BALANCE, 'if entry.kind in ("look", "recovered") else', 'if entry.kind == "recovered" else', OF_LEDGER),
    Fault(
        "ledger: the same images under another name",
        BALANCE,
        'if entry.dataset != dataset and entry.body["digest"] == digest:',
        "if False:",
        OF_LEDGER,
    ),
    Fault(
        "ledger: sums of two relations",
        BALANCE,
        'return "replace_one" if any(entry.body["relation"] == "replace_one" for entry, _ in spends) else "add_remove"',
        'return "add_remove"',
        OF_LEDGER,
    ),
    Fault(
        "chain: an edited entry",
        CHAIN,
        "if _hash(row.seq, row.dataset, row.kind, row.body, row.previous) != row.hash:",
        "if False:",
        "sfumato/privacy/ledger",
    ),
    Fault(
        "chain: an entry signed by nobody",
        CHAIN,
        "if row.seq >= unsigned and not _is_signed(book, row, key):",
        "if False:",
        "sfumato/privacy/ledger/test_signing.py",
    ),
    Fault("chain: a ledger cut off", CHAIN, "if lost and (cut or spending):", "if False:", "sfumato/privacy/ledger/test_signing.py"),
    Fault("chain: two write at once", CHAIN, '"BEGIN IMMEDIATE"', '"BEGIN"', "sfumato/privacy/ledger/test_databases.py"),
    # the ensemble
    Fault(
        "ensemble: clipped as if no member abstained",
        ENSEMBLE,
        "radius = voices(settings, parts.facts, counted(parts)) /",
        "radius = counted(parts) /",
        "sfumato/methods/test_worst_case.py",
    ),
    Fault(
        "ensemble: those who abstain divide the average",
        ENSEMBLE,
        "total / voices(settings, parts.facts, counted(parts))",
        "total / counted(parts)",
        "sfumato/methods/test_dp_ensemble_heads.py",
    ),
    # prices
    Fault(
        "price: what nobody can price",
        "sfumato/privacy/accounting/accountant.py",
        "        return Priced(math.inf, NOBODY)",
        "        events = [event for event in events if not event.uncertified(relation)]",
        "sfumato/privacy/accounting/test_accountant.py",
    ),
    Fault(
        "price: an exchange for a removal",
        "sfumato/privacy/accounting/pld.py",
        '2.0 if checked_relation(relation) == "replace_one" else 1.0',
        "1.0",
        "sfumato/privacy/accounting",
    ),
    Fault(
        "price: a calibrated noise as the quick grids have it",
        "sfumato/privacy/accounting/accountant.py",
        "while (exact := priced(event_of_noise(noise), delta, relation).epsilon) > target:",
        "while (exact := 0.0) > target:",
        "sfumato/privacy/accounting/test_accountant.py",
    ),
    Fault(
        "price: an exchange in a histogram for a removal",
        "sfumato/privacy/accounting/accountant.py",
        "apart = math.sqrt(2) / 2 if",
        "apart = 1 / 2 if",
        "sfumato/privacy/accounting/test_events.py",
    ),
    Fault(
        "price: noised records that tell how many there are",
        "sfumato/privacy/accounting/events.py",
        'if relation == "replace_one" or not self.noise_multiplier:',
        "if True:",
        "sfumato/privacy/accounting/test_events.py",
    ),
    Fault(
        "odds: an exchange for a removal",
        "sfumato/privacy/accounting/pld.py",
        '{"add_remove": 1.0, "replace_one": 2.0}',
        '{"add_remove": 1.0, "replace_one": 1.0}',
        "sfumato/privacy/accounting/test_accountant.py",
    ),
    # store, certificates, publishing
    Fault("labels: the loosest wins", "artifacts/labels.py", "return max(", "return min(", "artifacts/test_labels.py"),
    Fault(
        "store: entries do not count for the label",
        "artifacts/store.py",
        '*(self.manifest(parent)["label"] for parent in parents), *entries.values()]',
        '*(self.manifest(parent)["label"] for parent in parents)]',
        "artifacts/test_store.py",
    ),
    Fault(
        "store: parents do not count for the label",
        "artifacts/store.py",
        '*(self.manifest(parent)["label"] for parent in parents), *entries.values()]',
        "*entries.values()]",
        "artifacts/test_store.py",
    ),
    Fault("store: a manifest that was changed", "artifacts/store.py", "if hashlib.sha256(text).hexdigest() != digest:", "if False:", "artifacts/test_store.py"),
    Fault(
        "store: a file that was changed",
        "artifacts/store.py",
        "or file_digest(folder / name) != expected:\n                raise Damaged(\n                    f\"file {name} of artifact {digest[:SHOWN_DIGITS]} in",
        "and False:\n                raise Damaged(\n                    f\"file {name} of artifact {digest[:SHOWN_DIGITS]} in",
        "artifacts/test_store.py",
    ),
    Fault(
        "binding: entries of another ledger",
        "artifacts/binding.py",
        'if set(manifest["entries"]) - set(named):',
        "if False:",
        f"{OF_GATE} tasks/runtime/test_caching.py",
    ),
    Fault("certificate: any number of images", "artifacts/certify.py", "images=min(drawn, default=ANY_NUMBER),", "images=ANY_NUMBER,", OF_GATE),
    Fault("gate: INTERNAL images leave", "artifacts/gate.py", 'if label == Label.INTERNAL and "claim" not in accepted:', "if False:", OF_GATE),
    Fault("gate: copies leave", "artifacts/gate.py", 'if not copies.body["passed"] and "copies" not in accepted:', "if False:", OF_GATE),
    Fault("gate: an audit that refutes", "artifacts/gate.py", "        if not one.body[\"passed\"] and (", "        if False and (", "artifacts/test_certify.py"),
    Fault("gate: what the ledger does not name", "artifacts/gate.py", "if why := unbound(store, known, samples):", 'if why := "":', OF_GATE),
    Fault("publishing: no last look at the label", "artifacts/publish.py", 'if label == Label.INTERNAL and not record.override("claim"):', "if False:", "artifacts/test_publish.py"),
    Fault("tracking: INTERNAL beside what may be shown", "artifacts/tracking.py", "return INTERNAL if label == Label.INTERNAL else SHAREABLE", "return SHAREABLE", "artifacts/test_tracking.py"),
    # stages and flow
    Fault("cache: the code is not in the key", "tasks/runtime/caching.py", "code_digest(function, extra), library_versions()", "library_versions()", "tasks/runtime/test_caching.py"),
    Fault("cache: versions are not in the key", "tasks/runtime/caching.py", "library_versions(), plain]", "plain]", "tasks/runtime/test_caching.py"),
    Fault("cache: a parameter that came later is in no key", "tasks/runtime/caching.py", "(LATER in marked.get(name, ()) and value == given[name].default)", "(LATER in marked.get(name, ()))", "tasks/runtime/test_keys.py"),
    Fault("cache: a damaged result is used", "tasks/runtime/caching.py", "if cached and (why := lacking(place, ref)):", 'if cached and (why := ""):', "tasks/runtime/test_caching.py"),
    Fault("stage: what is kept is not committed", "tasks/runtime/artifact.py", "                payment.commit(ledger, ref.digest)", "                pass", "tasks/test_judging.py"),
    Fault("flow: a failed rehearsal stops nothing", "flows/synthesize.py", "if worse and not go_on:", "if False:", "flows/test_synthesize.py"),
    Fault("runtime: a stage is given more than it reads", "tasks/runtime/caching.py", "narrowed(value, marked.get(name, ()))", "value", "tasks/runtime/test_narrowing.py"),
    Fault("flow: a spent budget stops nothing", "flows/synthesize.py", "journal.refusal = bears.refusal(", "journal.refusal = \"\" and bears.refusal(", "flows/test_synthesize.py"),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="words of which a fault's name holds one, with commas between")
    parser.add_argument("--json", type=Path, help="file for what was found")
    options = parser.parse_args()
    words = [word for word in options.only.split(",") if word]
    chosen = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    findings: dict[str, Finding] = {}
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Path(folder) / "copy"
        copy_to(copy)
        for fault, finding, seconds in tried(chosen, copy):
            findings[fault.name] = finding
            print(f"{finding:<7} {seconds:6.1f} s  {fault.name}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(findings, indent=1) + "\n", encoding="utf-8")
    print("\n".join(summary(findings)))
    return int(set(findings.values()) != {"caught"})


def summary(findings: dict[str, Finding]) -> Iterator[str]:
    """A table of the parts of the program: how many faults were put into each, and how many were caught."""
    yield "| part | faults | caught |\n| --- | --- | --- |"
    parts = [name.partition(":")[0] for name in findings]
    for part in dict.fromkeys(parts):
        caught = sum(finding == "caught" for name, finding in findings.items() if name.startswith(f"{part}:"))
        yield f"| {part} | {parts.count(part)} | {caught} |"
    yield f"| all | {len(parts)} | {sum(finding == 'caught' for finding in findings.values())} |"


def copy_to(copy: Path) -> None:
    """A copy of the tree as it lies here, without what is ignored."""
    for name in COPIED:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        if (ROOT / name).exists():
            shutil.copyfile(ROOT / name, copy / name)


def tried(faults: list[Fault], copy: Path) -> Iterator[tuple[Fault, Finding, float]]:
    """Each fault with what its tests made of it and the seconds that they took; the copy is whole again after each."""
    for fault in faults:
        path = copy / fault.file
        text, started = path.read_text(encoding="utf-8"), time.monotonic()
        if not fits(fault, text):
            yield fault, "stale", 0.0
            continue
        path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        try:
            finding = finding_of(fault, copy)
        finally:
            path.write_text(text, encoding="utf-8")
        yield fault, finding, time.monotonic() - started


def fits(fault: Fault, text: str) -> bool:
    """Whether a fault can be put into the text of its file."""
    return text.count(fault.old) == 1 and fault.old != fault.new


def finding_of(fault: Fault, copy: Path) -> Finding:
    """What the quick tests say of the copy with the fault in it; "broken" where they could not be run."""
    tests = [f"tests/{name}" for name in fault.tests.split()]
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(line, cwd=copy, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return "broken"
    if done.returncode not in (0, TESTS_FAILED):
        return "broken"
    return "caught" if done.returncode else "missed"


if __name__ == "__main__":
    sys.exit(main())
