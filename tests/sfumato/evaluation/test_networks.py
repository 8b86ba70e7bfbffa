import pytest
import torch

from sfumato.evaluation import networks
from sfumato.evaluation.networks import cnn, dppm_cnn, held_back, mlp, read, resnet9, steps, trained


def parameters(model) -> int:
    return sum(value.numel() for value in model.parameters())


def test_the_networks_have_the_papers_sizes():
    assert parameters(mlp((1, 28, 28), 10)) == 784 * 100 + 100 + 100 * 10 + 10
    convolutions = 9 * 32 + 32 + 9 * 32 * 64 + 64 + 9 * 64 * 128 + 128
    assert parameters(cnn((1, 28, 28), 10)) == convolutions + 1152 * 128 + 128 + 128 * 10 + 10
    printed = 9 * 32 + 32 + 9 * 32 * 64 + 64 + 64 * 64 + 64 + 9 * 64 * 64 + 64
    assert parameters(dppm_cnn((1, 28, 28), 10)) == printed + 14 * 14 * 64 * 128 + 128 + 128 * 10 + 10
    channels = [(3, 64), (64, 128), (128, 128), (128, 128), (128, 256), (256, 512), (512, 512), (512, 512)]
    assert parameters(resnet9((3, 32, 32), 10)) == sum(9 * a * b + 2 * b for a, b in channels) + 512 * 10 + 10


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (mlp, (3, 5, 7)),
        (cnn, (1, networks.CNN_LEAST_SIDE, 21)),
        (cnn, (3, 32, 32)),
        (resnet9, (3, 8, 9)),
        (dppm_cnn, (1, networks.DPPM_LEAST_SIDE, 5)),
        (dppm_cnn, (3, 9, 8)),
    ],
)
def test_every_size_that_is_promised_can_be_read(build, shape):
    assert build(shape, 4).eval()(torch.zeros(2, *shape)).shape == (2, 4)


def test_a_batch_of_one_stops_no_training():
    images = torch.rand(155, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1  # 129 taught: 128 + 1
    model = trained(resnet9, images, torch.arange(155) % 2, 2, epochs=1)
    assert read(model, images).shape == (155,)


def test_the_mlp_learns_digits_and_leaves_the_global_state_alone(digits):
    before, heard = torch.random.get_rng_state(), []
    model = trained(mlp, digits.train, digits.train_labels, 10, epochs=40, progress=lambda *step: heard.append(step))
    assert torch.equal(torch.random.get_rng_state(), before) and not model.training
    assert (read(model, digits.test) == digits.test_labels).double().mean() > 0.85
    assert heard[-1] == (steps(1437, 40),) * 2 and len(heard) == 40 * 10
    assert steps(60_000, 50) == 50 * -(-50_000 // 128) and held_back(60_000) == 10_000


def test_dppms_classifier_learns_digits(digits):
    model = trained(dppm_cnn, digits.train, digits.train_labels, 10, epochs=10)
    assert (read(model, digits.test) == digits.test_labels).double().mean() > 0.9


def test_the_best_epoch_by_held_back_synthetic_images_is_kept(digits, monkeypatch):
    """The epoch is chosen by synthetic images alone; where later ones read them worse, an early one is kept."""
    seen, true_read = [], networks.read

    def watched(model, images):
        seen.append(images)
        result = true_read(model, images)
        return result if len(seen) == 2 else torch.full_like(result, -1)  # the second epoch alone is right at all

    monkeypatch.setattr(networks, "read", watched)
    task = (mlp, digits.train[:300], digits.train_labels[:300], 10)
    best_of_five, two = trained(*task, epochs=5), None
    monkeypatch.setattr(networks, "read", true_read)
    two = trained(*task, epochs=2)
    assert len(seen) == 5 and all(torch.equal(images, seen[0]) and len(images) == 50 for images in seen)
    known = {tuple(image.flatten().tolist()) for image in digits.train[:300]}
    assert {tuple(image.flatten().tolist()) for image in seen[0]} <= known
    assert torch.equal(true_read(best_of_five, digits.test), true_read(two, digits.test))
