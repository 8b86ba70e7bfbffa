"""Records made to slip through: collinear positions that cancel, huge and tiny numbers, coarse number formats."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.diffusion.objective import Examples
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.layers import Conv, Embed, Linear
from sfumato.privacy.engine.norms import Weighed, weigh, weigh_gradients
from tests.oracle import WAYS, Wrapped, by, norm, pictures

CONV = Conv((4, 3, 3, 3), (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
POINT = Conv((4, 3, 1, 1), (2, 2), (0, 0), (1, 1), False, (0, 0), 1)
LINE = Conv((4, 3, 5), (2,), (2,), (1,), False, (0,), 1)
CASES = {
    "linear": (Linear(), (16, 5), (16, 4)),
    "linear, many": (Linear(), (40, 30), (40, 30)),
    "product": (Linear(turned=True), (16, 5), (16, 4)),
    "conv": (CONV, (3, 5, 5), (4, 5, 5)),
    "strided pointwise conv": (POINT, (3, 5, 5), (4, 3, 3)),
    "conv on lines": (LINE, (3, 9), (4, 5)),
    "table": (Embed(4), (12,), (12, 5)),
}
"""Layer, shape of its input and of its output gradient for one row: all that have a Gram way."""


def contribution(weighed: Weighed, clip: float) -> torch.Tensor:
    """Norm of what each record adds to the sum when it is alone in it, over the clip."""
    norms = weighed.squares.sqrt()
    factors = (clip / norms.clamp(min=1e-38)).clamp(max=1).where(norms.isfinite(), 0)
    alone = [weighed.total(factors * (torch.arange(len(factors)) == i), norms.isfinite()) for i in range(len(factors))]
    return torch.stack([one.double().norm() for one in alone]) / clip


def crafted(shape_a, shape_q, records, copies, noise, pattern, generator, channels_first):
    """Inputs that are nearly the same at all positions, output gradients that nearly sum to zero over them."""
    rows = records * copies

    def same(shape):
        at = [1] * len(shape)
        at[0 if channels_first else -1] = shape[0 if channels_first else -1]
        base = torch.randn(records, 1, *at, generator=generator).expand(records, copies, *shape)
        return base.reshape(rows, *shape) * torch.ones(rows, *shape)

    if len(shape_a) == 1:  # a table
        a = torch.full((rows, *shape_a), 1)
    else:
        a = same(shape_a) + noise * torch.randn(rows, *shape_a, generator=generator)
    q = torch.randn(rows, *shape_q, generator=generator) if pattern == "centred" else same(shape_q)
    q = q.view(records, copies, *shape_q)
    axes = [1, *(range(3, q.dim()) if channels_first else range(2, q.dim() - 1))]
    if pattern == "signs":
        signs = torch.randn(q.mean(2 if channels_first else -1, keepdim=True).shape, generator=generator).sign()
        q = q * signs
    q = q - q.mean(axes, keepdim=True)
    q = q + noise * torch.randn(q.shape, generator=generator)
    return a, q.reshape(rows, *shape_q).contiguous()


@pytest.mark.parametrize("pattern", ["centred", "signs"])
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("kind", CASES)
def test_positions_that_cancel_do_not_slip_through(kind, copies, pattern):
    """In float32 alone, the Gram norm of some of these is zero and they would pass with 20 times the clip."""
    layer, shape_a, shape_q = CASES[kind]
    generator = torch.Generator().manual_seed(3)
    worst = 0.0
    for noise in (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0):
        for scale in (1e-6, 1.0, 1e6):
            a, q = crafted(shape_a, shape_q, 8, copies, noise, pattern, generator, isinstance(layer, Conv))
            weighed = weigh(layer, "gram", (a if a.dtype == torch.long else a * scale,), q, 8)
            worst = max(worst, *(float(contribution(weighed, clip).max()) for clip in (1e-9, 1e-5, 0.1)))
    assert worst <= 1 + 1e-6


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(CASES)), st.integers(0, 10_000), st.floats(-9, 0), st.floats(-9, 0), st.integers(1, 4))
def test_a_search_for_the_worst_record_finds_none(kind, start, of_input, of_output, rank):
    """Low-rank inputs and gradients chosen against them, both with a little noise of any size."""
    layer, shape_a, shape_q = CASES[kind]
    generator = torch.Generator().manual_seed(start)
    rows, features = 4, 0 if isinstance(layer, Conv) else -1

    def low_rank(shape):
        long = list(shape)
        long[features] = rank
        basis = torch.randn(rank, shape[features], generator=generator)
        return torch.einsum("n...r,rf->n...f", torch.randn(rows, *long, generator=generator).movedim(1 + features, -1) if features == 0
                            else torch.randn(rows, *long, generator=generator), basis)  # fmt: skip

    def laid(part):
        return part.movedim(-1, 1).contiguous() if features == 0 else part

    a = torch.randint(2, (rows, *shape_a), generator=generator) if len(shape_a) == 1 else laid(low_rank(shape_a))
    q = laid(low_rank(shape_q))
    if a.is_floating_point():
        a = a[:, :1].expand_as(a) + 10**of_input * a if features == 0 else a[:, :1] + 10**of_input * a
    q = q - q.mean(list(range(2, q.dim())) if features == 0 else 1, keepdim=True) + 10**of_output * q
    weighed = weigh(layer, "gram", (a.contiguous(),), q.contiguous(), rows)
    for clip in (1e-8, 1e-4, 1.0):
        assert float(contribution(weighed, clip).max()) <= 1 + 1e-6


@pytest.mark.parametrize("kind", CASES)
def test_squared_norms_are_those_of_the_gradients(kind):
    layer, shape_a, shape_q = CASES[kind]
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(4, (12, *shape_a)) if kind == "table" else torch.randn(12, *shape_a, generator=generator)
    q = torch.randn(12, *shape_q, generator=generator)
    retained = weigh_gradients(layer.gradients(layer.ways((a,), q, 6)[0], (a,), q, 6))
    gram = weigh(layer, "gram", (a,), q, 6)
    torch.testing.assert_close(gram.squares.sqrt(), retained.squares.sqrt(), rtol=1.1e-5, atol=0)
    assert bool((gram.squares >= retained.squares * (1 - 1e-6)).all()), "rather too large than too small"
    torch.testing.assert_close(
        gram.total(torch.arange(6.0), None), retained.total(torch.arange(6.0), None), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("kind", [kind for kind in CASES if kind != "table"])
def test_a_broken_record_is_out_and_spoils_no_other(kind, broken):
    layer, shape_a, shape_q = CASES[kind]
    generator = torch.Generator().manual_seed(0)
    a, q = torch.randn(6, *shape_a, generator=generator), torch.randn(6, *shape_q, generator=generator)
    clean = weigh(layer, "gram", (a.clone(),), q.clone(), 6)
    a[2].flatten()[4] = broken
    q[4].flatten()[0] = broken
    result = weigh(layer, "gram", (a,), q, 6)
    keep = torch.tensor([1.0, 1, 0, 1, 0, 1])
    torch.testing.assert_close(result.squares[keep.bool()], clean.squares[keep.bool()])
    assert not result.squares[[2, 4]].isfinite().any()
    torch.testing.assert_close(result.total(keep, keep.bool()), clean.total(keep, None), rtol=1e-4, atol=1e-5)


NETS = {
    "conv": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.SiLU(), nn.Conv2d(6, 3, 3, padding=1)
    ),
    "linear": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(36, 20), nn.LayerNorm(20), nn.SiLU(), nn.Linear(20, 20)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", NETS)
def test_under_autocast_no_record_exceeds_the_clip_either(kind, way):
    """Layers run in bfloat16; norms and sums do not."""
    torch.manual_seed(1)
    model = Wrapped(NETS[kind]())
    trainable = dict(model.named_parameters())
    flat = pictures(1, 3)
    flat = flat.map(lambda field: torch.ones_like(field) if field.is_floating_point() else field)
    examples = [pictures(6, 3, scale=scale) for scale in (1e-4, 1.0, 1e4)] + [flat]
    reached = 0
    for part in examples:
        for record in range(len(part.y)):
            alone = part.map(lambda field, at=record: field[at : at + 1])
            for clip in (1e-6, 1e-2, 1.0):
                with torch.autocast("cpu", torch.bfloat16):
                    result = clipped_sum(model, trainable, alone, clip=clip, chunk=1, choose=by(way))
                assert all(value.dtype == torch.float32 for value in result.values())
                assert float(norm(result)) <= clip * (1 + 1e-6)
                reached += float(norm(result)) > 0.999 * clip
    assert reached > 20


def test_under_autocast_the_sum_is_close_to_the_exact_one():
    torch.manual_seed(1)
    model = Wrapped(NETS["conv"]())
    trainable, examples = dict(model.named_parameters()), pictures(6, 2)
    exact = clipped_sum(model, trainable, examples, clip=0.1, chunk=6)
    with torch.autocast("cpu", torch.bfloat16):
        rough = clipped_sum(model, trainable, examples, clip=0.1, chunk=6)
    difference = float(norm({name: rough[name] - exact[name] for name in exact}) / norm(exact))
    assert 0 < difference < 0.05


def test_a_copy_that_undoes_another_leaves_nothing_to_clip():
    """Two copies with opposite targets: their mean is what counts, however large each is."""
    torch.manual_seed(1)
    model = Wrapped(nn.Sequential(nn.Flatten(), nn.Linear(108, 108, bias=False)))
    nn.init.zeros_(model.net[1].weight)
    one = pictures(1, 1)
    both = Examples(
        one.x_t.repeat(1, 2, 1, 1, 1), one.t.repeat(1, 2), one.y.repeat(1, 2), torch.cat([one.target, -one.target], 1)
    )
    for way in ("product", "gram"):
        result = clipped_sum(model, dict(model.named_parameters()), both, clip=1e-12, chunk=1, choose=by(way))
        assert float(norm(result)) <= 1e-12 * (1 + 1e-6)
