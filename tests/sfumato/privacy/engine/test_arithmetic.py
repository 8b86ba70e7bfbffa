"""Coarse number formats: TF32 is off inside the engine and back on afterwards, and norms are those of what is summed."""

import threading

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sfumato.diffusion.objective import Examples
from sfumato.privacy.engine import arithmetic
from sfumato.privacy.engine.arithmetic import EXACT, exact_products
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.norms import squared_norms, weigh_gradients
from tests.oracle import Wrapped, by, norm, pictures

KEPT_BITS, BITS = 10, 23
"""Of a number's mantissa, in TF32 and in float32."""
CLIPS = torch.linspace(0.0101, 0.0125, 60).tolist()
"""Each rounds the factor times the gradient otherwise; the factors are a little above a power of 2, where that is coarsest."""
PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.bmm.default}


@pytest.fixture(autouse=True)
def as_it_was():
    had = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(had[0])
    torch.backends.cudnn.allow_tf32 = had[1]


def rounds_operands():
    """Whether torch may round the operands of some product now."""
    if places := arithmetic._places():
        return any(place.fp32_precision not in EXACT for place in places)
    return torch.get_float32_matmul_precision() != "highest" or torch.backends.cudnn.allow_tf32


def coarse(part):
    """The nearest number with a mantissa of 10 bits."""
    if not isinstance(part, torch.Tensor) or part.dtype != torch.float32:
        return part
    half = 1 << (BITS - KEPT_BITS - 1)
    bits = (part.detach().contiguous().view(torch.int32) + half) & ~((1 << (BITS - KEPT_BITS)) - 1)
    return part + (bits.view(torch.float32) - part).detach()


class TensorCores(TorchDispatchMode):
    """Matrix products as a GPU takes them while torch lets it round, those of a backward pass included."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in PRODUCTS and rounds_operands():
            args = tuple(map(coarse, args))
        return function(*args, **(kwargs or {}))


def crafted():
    """A model and one record whose two positions nearly cancel, and more so once they are rounded.

    Its gradient is v - u in every entry, v just below the middle between two numbers of TF32 and u just above: the norm is
    taken of less. Times a factor both lie elsewhere, so that the sum is taken of more. They differ by an eighth of their sum,
    which magnifies that eightfold and is just too much for the norm to be taken again in double precision.
    """
    model = Wrapped(nn.Sequential(nn.Flatten(2), nn.Linear(36, 36, bias=False)))
    nn.init.zeros_(model.net[1].weight)  # the gradient at a position is that of the target alone
    one = pictures(1, 1)
    step, hair = 2.0 ** -(KEPT_BITS + 1), 2.0**-10
    v, u = 1 + 293 / 2**KEPT_BITS + step * (1 - hair), 1 + step * (1 + hair)
    target = torch.tensor([v, -u, 0.0]).view(3, 1, 1).expand_as(one.target) * (one.target[0, 0].numel() / 2)
    return model, Examples(torch.ones_like(one.x_t), one.t, one.y, target)


def heaviest(total=clipped_sum, way="gram", device="cpu"):
    """What the record weighs in units of the clip, at the clip where that is most."""
    model, one = crafted()
    model, one = model.to(device), one.map(lambda field: field.to(device))
    trainable = dict(model.named_parameters())
    return max(float(norm(total(model, trainable, one, clip=clip, chunk=1, choose=by(way)))) / clip for clip in CLIPS)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_a_record_crafted_for_tf32_weighs_no_more_than_the_clip(precision):
    torch.set_float32_matmul_precision(precision)
    with TensorCores():
        assert heaviest() <= 1 + 1e-6
    assert torch.get_float32_matmul_precision() == precision


def test_without_exact_products_the_crafted_record_would_weigh_more_than_the_clip():
    torch.set_float32_matmul_precision("high")
    with TensorCores():
        assert heaviest(clipped_sum.__wrapped__) > 1.004


def test_the_products_of_a_gpu_would_be_coarse():
    """What the test above would miss if the rounding were not there."""
    torch.set_float32_matmul_precision("high")
    a = torch.full((4, 4), 1 + 2.0**-12)
    with TensorCores():
        assert float((a @ a)[0, 0]) == 4.0
        with exact_products():
            assert float((a @ a)[0, 0]) > 4.0


def test_torch_is_set_as_it_was_after_a_fault_and_for_the_last_of_several():
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    inside, leave = threading.Event(), threading.Event()

    def other():
        with exact_products():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with pytest.raises(ZeroDivisionError), exact_products():
        thread.start()
        inside.wait()
        1 / 0  # noqa: B018
    assert not rounds_operands(), "another thread is still inside"
    leave.set()
    thread.join()
    assert rounds_operands() and torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("numbers", [1, 255, 256, 257, 1_000_003])
def test_the_norm_of_many_numbers_is_not_too_small(numbers):
    """Added up in float32 alone it was: 1e-5 too small for a million, 2e-3 for 35 million."""
    rows = torch.randn(1, numbers, generator=torch.Generator().manual_seed(0))
    assert float(squared_norms(rows).sqrt()) == pytest.approx(float(rows.double().norm()), rel=2e-7)
    weighed, clip = weigh_gradients(rows), 1e-3
    factor = clip / weighed.squares.sqrt()
    assert float(weighed.total(factor, None).double().norm()) <= clip * (1 + 1e-6)


def test_a_network_in_half_precision_keeps_to_the_clip():
    torch.manual_seed(1)
    model = Wrapped(nn.Sequential(nn.Conv2d(3, 6, 3), nn.SiLU(), nn.Conv2d(6, 6, 3))).bfloat16()
    part = pictures(4, 2).map(lambda field: field.bfloat16() if field.is_floating_point() else field)
    for record in range(4):
        alone = part.map(lambda field, at=record: field[at : at + 1])
        result = clipped_sum(model, dict(model.named_parameters()), alone, clip=1e-2, chunk=1)
        assert all(value.dtype == torch.float32 for value in result.values())
        assert 0.9e-2 < float(norm(result)) <= 1e-2 * (1 + 1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("way", ["gram", "product"])
def test_on_a_gpu_no_record_exceeds_the_clip(way):
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    assert heaviest(way=way, device="cuda") <= 1 + 1e-6
