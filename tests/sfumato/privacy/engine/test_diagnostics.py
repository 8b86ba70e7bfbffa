"""What steps saw without noise: the right numbers."""

import pytest
import torch

from sfumato.diffusion.objective import record_losses
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.diagnostics import seen
from tests.oracle import loop, norm
from tests.sfumato.privacy.engine.test_clipping import awake, digits
from tests.sfumato.privacy.engine.test_clipping_rules import plain


def test_norms_are_those_of_the_records_before_clipping():
    model, trainable = awake("mlp")
    examples, norms = digits(7, 2), []
    clipped_sum(model, trainable, examples, clip=0.01, chunk=3, tell_norms=norms.append)
    expected = torch.stack([norm(gradient) for gradient in loop(plain(model), trainable, examples)])
    torch.testing.assert_close(torch.cat(norms).double(), expected, rtol=1e-5, atol=0)


def test_records_are_counted():
    model, trainable = awake("mlp")
    examples, norms = digits(5, 1), []
    examples.target[1, 0, 0, 0, 0] = float("nan")
    clipped_sum(model, trainable, examples, clip=0.01, chunk=5, tell_norms=norms.append)
    finite = torch.cat(norms)[[0, 2, 3, 4]]
    between = float(finite.sort().values[1:3].mean())
    result = seen(model, examples, norms, step=3, clip=between)
    assert (result.step, result.records, result.not_finite, result.clipped) == (3, 5, 1, 2)
    assert result.median_norm == pytest.approx(float(finite.median()))
    assert result.loss == pytest.approx(float(record_losses(model, examples)[[0, 2, 3, 4]].mean().detach()))


def test_an_empty_batch_has_no_loss():
    model, _ = awake("mlp")
    result = seen(model, digits(3, 1).map(lambda field: field[:0]), [], step=1, clip=1.0)
    assert (result.records, result.not_finite, result.median_norm, result.loss) == (0, 0, None, None)
