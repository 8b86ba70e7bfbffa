"""What one private step costs: time and memory of a clipped sum against the same step without privacy.

    OMP_NUM_THREADS=1 python benchmarks/dp_step.py [--quick] [--rows 35m] [--no-memory] [--no-time] [--trace] [--checks]

Prints two Markdown tables, of time and of peak memory, in units of the step without privacy on the same B x K images
(B records, K noised copies of each, loss averaged over copies). Columns: the engine of `sfumato.privacy.engine.clipping`;
Opacus' hooks (`GradSampleModule`) and its ghost clipping (`GradSampleModuleFastGradientClipping`), both on U-Nets whose
free-standing parameters they understand; `vmap` over `grad`; and the engine with `machine.checkpointing`. Opacus clips images and not means of copies, so it is
given B * K records: less than is asked, which favours it.

Time is the processor time of this process with one thread (on a shared machine, elapsed time measures the neighbours),
all columns interleaved, medians; on a GPU elapsed time. Memory is the growth of the largest resident set during three
steps in a process of its own per cell, above what the process held before the first step; on a GPU the allocator's peak.
"""

import argparse
import contextlib
import json
import logging
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from sfumato.config import FineTuning, Network, Schedule
from sfumato.diffusion.objective import Examples, denoising_examples, record_losses
from sfumato.diffusion.schedule import make_schedule
from sfumato.networks.build import build
from sfumato.networks.checkpointing import checkpoint_blocks
from sfumato.privacy.engine.clipping import clip_factors, clipped_sum
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from sfumato.privacy.engine.per_record import all_at_once
from sfumato.privacy.engine.spot_check import checked_steps, spot_check

ALL = ("rows", "film", "attention", "time", "rest")
CLIP = 0.05
SMALL = [(16, 1), (64, 1), (16, 4), (16, 8)]
NETWORKS = {
    "demo": ("MLP .23M, 8x8, rows and FiLM learn", Network(kind="mlp"), (1, 8, 8), ("rows", "film"), [(256, 4)]),
    "mlp": ("MLP .23M, 8x8", Network(kind="mlp"), (1, 8, 8), ALL, [(64, 1), (64, 4)]),
    "small": (
        "U-Net .17M, 8x8",
        Network(kind="unet", width=16, multipliers=(1, 2), blocks=1, attention=(4,)),
        (1, 8, 8),
        ALL,
        SMALL,
    ),
    "1.6m": (
        "U-Net 1.5M, 28x28",
        Network(kind="unet", width=32, multipliers=(1, 2, 2), blocks=2, attention=(7,)),
        (1, 28, 28),
        ALL,
        SMALL,
    ),
    "35m": (
        "U-Net 35M, 32x32",
        Network(kind="unet", width=128, multipliers=(1, 2, 2, 2), blocks=2, attention=(16,)),
        (3, 32, 32),
        ALL,
        [(8, 1), (4, 4)],
    ),
}
"""Name -> what the table says, network, shape, groups that learn, sizes B x K."""
QUICK = ("demo", "small")
COLUMNS = ("no privacy", "ours", "Opacus hooks", "Opacus ghost", "vmap(grad)", "ours, recomputed")
ROUNDS = {"demo": 15, "mlp": 15, "small": 15, "1.6m": 5, "35m": 3}
MEMORY_STEPS = 3

Step = Callable[[], None]


def setting(name: str, records: int, draws: int, device: str) -> tuple[nn.Module, dict[str, nn.Parameter], Examples]:
    """A network that is awake everywhere, its trainable parameters, and random examples."""
    _, network, shape, groups, _ = NETWORKS[name]
    model = build(network, shape, 10)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    x = torch.rand(records, *shape, generator=generator) * 2 - 1
    y = torch.arange(records) % 10
    schedule = make_schedule(Schedule())
    examples = denoising_examples(schedule, x, y, draws=draws, low=1, high=schedule.timesteps, generator=generator)
    model = model.to(device)
    return model, trainable_parameters(model, groups), examples.map(lambda field: field.to(device))


def no_privacy(model: nn.Module, trainable: dict[str, nn.Parameter], examples: Examples) -> Step:
    """Forward, backward."""

    def step() -> None:
        record_losses(model, examples).mean().backward()
        for parameter in trainable.values():
            parameter.grad = None

    return step


def ours(model: nn.Module, trainable: dict[str, nn.Parameter], examples: Examples) -> Step:
    """The engine, all records in one physical batch."""
    return lambda: clipped_sum(model, trainable, examples, clip=CLIP, chunk=len(examples.y))


def ours_recomputed(model: nn.Module, trainable: dict[str, nn.Parameter], examples: Examples) -> Step:
    """The engine with the activations of each U-Net block computed again."""
    return ours(checkpoint_blocks(model, True), trainable, examples)


def by_vmap(model: nn.Module, trainable: dict[str, nn.Parameter], examples: Examples) -> Step:
    """All records' gradients by `vmap` over `grad`."""

    def step() -> None:
        rows = all_at_once(model, trainable, examples)
        factors = clip_factors([each.flatten(1).square().sum(1) for each in rows.values()], CLIP)
        {name: factors @ each.flatten(1) for name, each in rows.items()}

    return step


def apart(examples: Examples) -> Examples:
    """Every copy as a record of its own."""
    return examples.map(lambda field: field.flatten(0, 1)[:, None])


class Spelt(nn.Module):
    """A denoiser in terms that Opacus has rules for: the class rows are read as a table by index."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        condition = model.condition
        condition.forward = lambda t, y: condition.time(self.features(t)) + condition.rows(y)

    def features(self, t: Tensor) -> Tensor:
        """Time features of the right width."""
        from sfumato.networks.layers import time_features

        return time_features(t, self.model.condition.width)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """See `PixelMlp` and `UNet`."""
        return self.model(x, t, y)


def opacus_hooks(model: nn.Module, trainable: dict[str, nn.Parameter], examples: Examples) -> Step:
    """`GradSampleModule`, clipping by its own arithmetic."""
    from opacus.grad_sample import GradSampleModule

    wrapped, copies = GradSampleModule(Spelt(model), loss_reduction="sum", strict=False), apart(examples)

    def step() -> None:
        record_losses(wrapped, copies).sum().backward()
        learnt = [p for p in wrapped.parameters() if p.requires_grad]
        factors = clip_factors([p.grad_sample.flatten(1).square().sum(1) for p in learnt], CLIP)
        for parameter in learnt:
            parameter.grad = torch.einsum("i,i...", factors, parameter.grad_sample)
        for parameter in learnt:
            parameter.grad_sample = parameter.grad = None

    return step


def opacus_ghost(model: nn.Module, trainable: dict[str, nn.Parameter], examples: Examples) -> Step:
    """`GradSampleModuleFastGradientClipping`: norms first, then a second backward pass of the weighted loss."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        Spelt(model), loss_reduction="sum", max_grad_norm=CLIP, use_ghost_clipping=True, strict=False
    )
    copies = apart(examples)

    def step() -> None:
        wrapped.enable_hooks()
        losses = record_losses(wrapped, copies)
        losses.sum().backward(retain_graph=True)
        factors = wrapped.get_clipping_coef()
        wrapped.disable_hooks()
        for parameter in trainable.values():
            parameter.grad = None
        (losses * factors).sum().backward()
        for parameter in trainable.values():
            parameter.grad = parameter._norm_sample = None

    return step


WAYS = dict(zip(COLUMNS, (no_privacy, ours, opacus_hooks, opacus_ghost, by_vmap, ours_recomputed), strict=True))


def prepared(column: str, name: str, records: int, draws: int, device: str) -> Step:
    """A column's step, warmed up once."""
    step = WAYS[column](*setting(name, records, draws, device))
    step()
    return step


def clock(device: str) -> float:
    """Processor seconds, or elapsed seconds of a GPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def times(name: str, records: int, draws: int, device: str, rounds: int) -> dict[str, float]:
    """Column -> median seconds of a step, all columns in turn; columns that cannot run are missing."""
    steps = {}
    for column in COLUMNS:
        try:
            steps[column] = prepared(column, name, records, draws, device)
        except Exception as problem:  # a peer that cannot run must not stop the table
            print(f"{column}: {type(problem).__name__}: {problem}", file=sys.stderr)
    taken: dict[str, list[float]] = {column: [] for column in steps}
    for _ in range(rounds):
        for column, step in steps.items():
            start = clock(device)
            step()
            taken[column].append(clock(device) - start)
    return {column: statistics.median(seconds) for column, seconds in taken.items()}


def peak(column: str, name: str, records: int, draws: int, device: str) -> float:
    """Bytes that steps add to what a process holds, measured in the process that calls this."""
    if device.startswith("cuda"):
        step = prepared(column, name, records, draws, device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        warm = WAYS[column](*setting(name, 1, 1, device))  # libraries and code of every layer are loaded
        warm()
        step = WAYS[column](*setting(name, records, draws, device))
        Path("/proc/self/clear_refs").write_text(
            "5"
        )  # else the largest set is that of the process which began this one
        before = largest_set()
    for _ in range(MEMORY_STEPS):
        step()
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() - before
    return largest_set() - before


def largest_set() -> int:
    """The largest resident set of this process so far, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def peaks(name: str, records: int, draws: int, device: str) -> dict[str, float]:
    """Column -> bytes, each measured in a process of its own."""
    peak_bytes = {}
    for column in COLUMNS:
        command = [sys.executable, __file__, "--cell", column, name, str(records), str(draws), "--device", device]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            peak_bytes[column] = json.loads(done.stdout.strip().splitlines()[-1])
    return peak_bytes


def line(label: str, by_column: dict[str, float], unit: str) -> str:
    """A row of ratios, the first column with its unit."""
    base = by_column[COLUMNS[0]]
    cells = [f"{by_column[c] / base:.2f}" if c in by_column else "-" for c in COLUMNS[1:]]
    return "| " + " | ".join([label, unit, *cells]) + " |"


def head(what: str, unit: str) -> None:
    """The top of a table."""
    print(f"\n{what}\n\n| network, B x K | {COLUMNS[0]}, {unit} | " + " | ".join(COLUMNS[1:]) + " |")
    print("| --- " * (len(COLUMNS) + 1) + "|", flush=True)


def trace(name: str, records: int, draws: int, device: str) -> None:
    """Where the time of one step goes, by torch's profiler."""
    from torch.profiler import profile

    model, trainable, examples = setting(name, records, draws, device)
    step = ours(model, trainable, examples)
    step()
    with profile() as seen:
        step()
    total = sum(row.self_cpu_time_total for row in seen.key_averages())
    print(
        f"\nOne step, {NETWORKS[name][0]}, {records}x{draws}\n\n| operation | calls | share of the step |\n| --- | --- | --- |"
    )
    for row in sorted(seen.key_averages(), key=lambda row: -row.self_cpu_time_total)[:12]:
        print(f"| {row.key} | {row.count} | {row.self_cpu_time_total / total:.0%} |")


def spot_checks(name: str, records: int, draws: int, device: str) -> str:
    """A row: what one spot check takes in units of a private step, and what all of a training add to it."""
    model, trainable, examples = setting(name, records, draws, device)
    tuning = FineTuning(clip=CLIP)
    step = ours(model, trainable, examples)
    kinds: list[Step] = [
        step,
        lambda: spot_check(model, trainable, examples, tuning, turn=1, physical_batch=records),
    ]
    taken: list[list[float]] = [[], []]
    for turn in range(1 + ROUNDS[name]):
        for own, kind in zip(taken, kinds, strict=True):
            start = clock(device)
            kind()
            if turn:  # the first warms up
                own.append(clock(device) - start)
    ratio = statistics.median(taken[1]) / statistics.median(taken[0])
    added = (f"{len(checked_steps(steps, tuning.checked)) / steps * ratio:.1%}" for steps in (150, 1000))
    return f"| {NETWORKS[name][0]}, {records}x{draws} | {ratio:.2f} | " + " | ".join(added) + " |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=list(NETWORKS), help="networks (default: all but 35m)")
    parser.add_argument("--quick", action="store_true", help="the small networks only, without memory")
    parser.add_argument("--no-memory", action="store_true", help="time only")
    parser.add_argument("--no-time", action="store_true", help="memory only")
    parser.add_argument("--trace", action="store_true", help="where the time of one step goes, instead")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--checks", action="store_true", help="what spot checks take, instead")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    device = arguments.device
    if arguments.cell:
        column, name, records, draws = arguments.cell
        print(json.dumps(peak(column, name, int(records), int(draws), device)))
        return
    rows = arguments.rows or (QUICK if arguments.quick else [name for name in NETWORKS if name != "35m"])
    if arguments.trace:
        for name in rows:
            trace(name, *NETWORKS[name][4][-1], device)
        return
    if arguments.checks:
        print(
            "| network, B x K | one check, in steps | 150 steps | 1,000 steps |\n| --- | --- | --- | --- |", flush=True
        )
        for name in rows:
            print(spot_checks(name, *NETWORKS[name][4][0], device), flush=True)
        return
    with contextlib.suppress(ImportError):
        import opacus

        print(f"torch {torch.__version__}, opacus {opacus.__version__}, {platform.machine()}, one thread, {device}")
    if not arguments.no_time:
        head("Time of a step, in units of the step without privacy", "ms")
    for name in rows if not arguments.no_time else ():
        for records, draws in NETWORKS[name][4]:
            by_column = times(name, records, draws, device, ROUNDS[name])
            print(
                line(f"{NETWORKS[name][0]}, {records}x{draws}", by_column, f"{by_column[COLUMNS[0]] * 1e3:.0f}"),
                flush=True,
            )
    if arguments.quick or arguments.no_memory:
        return
    head("Peak memory of a step, in units of the step without privacy", "MB")
    for name in rows:
        for records, draws in NETWORKS[name][4]:
            by_column = peaks(name, records, draws, device)
            print(
                line(f"{NETWORKS[name][0]}, {records}x{draws}", by_column, f"{by_column[COLUMNS[0]] / 1e6:.0f}"),
                flush=True,
            )


if __name__ == "__main__":
    main()
