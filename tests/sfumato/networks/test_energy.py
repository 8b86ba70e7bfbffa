"""The prediction is the gradient of the energy, in every way that it is asked for, and the line integral of its score is the energy's difference."""

import pytest
import torch

from sfumato.config import Network
from sfumato.diffusion.hamiltonian import leapfrog
from sfumato.diffusion.score_matching import curvature
from sfumato.networks.build import build
from sfumato.networks.denoiser import Denoiser, class_rows, parameters_by_group, with_classes

SHAPE = (1, 4, 4)
SMALL = Network(kind="mlp", width=16, blocks=1, condition=8)


@pytest.fixture(params=["mlp", "refinenet"])
def model(request):
    """In double precision, with weights that are not zero anywhere."""
    network = SMALL.model_copy(update={"kind": request.param, "width": 8, "prediction": "energy"})
    built = build(network, SHAPE, 3, seed=1).double()
    built.inner.condition.time.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    return built


def given(count=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, *SHAPE, generator=generator, dtype=torch.float64)
    return x, torch.full((count,), 7), torch.full((count,), -1)


def test_the_prediction_is_the_slope_of_the_energy(model):
    x, t, y = given()
    gradient, small = model(x, t, y), 1e-5
    for place in ((0, 0), (1, 2), (3, 3)):
        ahead = torch.zeros_like(x)
        ahead[:, 0, place[0], place[1]] = small
        slope = (model.energy(x + ahead, t, y) - model.energy(x - ahead, t, y)) / (2 * small)
        torch.testing.assert_close(slope, gradient[:, 0, place[0], place[1]], rtol=1e-5, atol=1e-6)


def test_it_is_the_same_with_gradients_without_them_and_in_inference_mode(model):
    x, t, y = given()
    learning = model(x, t, y)
    assert learning.requires_grad
    with torch.no_grad():
        still = model(x, t, y)
    with torch.inference_mode():
        drawing = model(*(part.clone() for part in (x, t, y)))
    assert not still.requires_grad
    for one in (still, drawing):
        torch.testing.assert_close(one, learning.detach())


def test_eq_7_differentiates_it_twice_and_its_curvature_is_symmetric(model):
    """The score of a density has a symmetric Jacobian, which no network is by itself."""
    x, t, y = given(1)
    jacobian = torch.autograd.functional.jacobian(lambda u: model(u, t, y), x).view(16, 16)
    torch.testing.assert_close(jacobian, jacobian.T)
    plain = torch.autograd.functional.jacobian(lambda u: model.inner(u, t, y), x).view(16, 16)
    assert (plain - plain.T).abs().max() > 1e-3
    bent, _ = curvature(lambda u: model(u, t, y), x, v := torch.ones_like(x))
    torch.testing.assert_close(bent, (v.flatten() @ jacobian @ v.flatten()).view(1))
    bent.sum().backward()
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "output.weight" in name)


def test_the_line_integral_of_the_gradient_tends_to_the_difference_of_energies(model):
    """Second order: half the step, a quarter of the error."""
    x, t, y = given()
    p, errors = torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64), []
    with torch.no_grad():
        for steps in (20, 40, 80):
            there, _, grown = leapfrog(lambda u: -model(u, t, y), x, p, step=0.2 / steps, steps=steps)
            errors.append(float((grown - model.energy(x, t, y) + model.energy(there, t, y)).abs().max()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.3) and errors[1] / errors[2] == pytest.approx(4, rel=0.2)
    assert errors[2] < 1e-3


def test_it_is_a_denoiser_and_its_groups_are_those_of_what_it_wraps():
    model, plain = (build(SMALL.model_copy(update={"prediction": kind}), SHAPE, 3) for kind in ("energy", "noise"))
    assert isinstance(model, Denoiser) and parameters_by_group(model) == parameters_by_group(plain)
    rows = torch.randn(2, 8)
    assert torch.equal(class_rows(with_classes(model, rows)), rows)
