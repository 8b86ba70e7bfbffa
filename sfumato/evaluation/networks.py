"""The networks that papers train on synthetic images: an MLP, two CNNs and a ResNet-9.

MLP and CNN are those of DPDM as printed there (Dockhorn et al. 2023), on which dp-promise reports too; RAPID names a CNN (Krizhevsky et al.
2012) without its sizes, here the same one, and for colour images a ResNet-9, here in its common form (He et al. 2016). DPPM prints its own CNN
(Liu et al. 2024, Figure 4c) without the widths of its hidden layers and how it learns; here it learns like the others. All are trained as dp-promise trains them (Wang et
al. 2024, Section 6.2): Adam, and of all epochs the one that reads a sixth of the synthetic images best, which the others
did not teach. Real images take no part in that choice.

Not covered: augmentation and learning-rate schedules, which would raise the ResNet's accuracy.
"""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.images import shape_of
from sfumato.progress import Progress, silent

RATE, BATCH_IMAGES = 3e-4, 128
"""Adam's learning rate and the images of a step (Wang et al. 2024, Section 6.2)."""
VALIDATION_SHARE = 1 / 6
"""Share of the synthetic images that choose the epoch: 10,000 of 60,000."""
HIDDEN = 100
"""Width of the MLP's hidden layer."""
CNN_WIDTHS, CNN_HIDDEN = (32, 64, 128), 128
"""Channels of the CNN's convolutions, and the width of its hidden layer."""
CNN_LEAST_SIDE = 18
"""Smallest side for the CNN, whose three convolutions without padding and two poolings leave nothing of a smaller image."""
DPPM_WIDTHS, DPPM_HIDDEN = (32, 64), 128
"""Channels of the convolutions of DPPM's classifier, as printed, and the width of its hidden layer, which is not."""
DPPM_LEAST_SIDE = 2
"""Smallest side for DPPM's classifier, whose pooling leaves nothing of a smaller image."""
RESNET_WIDTHS = (64, 128, 256, 512)
"""Channels of the ResNet-9's four stages."""
RESNET_LEAST_SIDE = 8
"""Smallest side for the ResNet-9, whose three poolings leave nothing of a smaller image."""
DROPOUT = 0.5
READ_IMAGES = 1024
"""Images read at once where nothing is trained."""


def mlp(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """One hidden layer on the pixels of images [c, h, w]."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * height * width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)
    )


def cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Three convolutions, dropout, a hidden layer; sides from 18 pixels up."""
    channels, height, width = shape
    first, second, third = CNN_WIDTHS
    left = [((side - 2) // 2 - 2) // 2 - 2 for side in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, first, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Dropout(DROPOUT),
        nn.Conv2d(first, second, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Dropout(DROPOUT),
        nn.Conv2d(second, third, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(third * left[0] * left[1], CNN_HIDDEN),
        nn.ReLU(),
        nn.Dropout(DROPOUT),
        nn.Linear(CNN_HIDDEN, classes),
    )


def dppm_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The classifier of DPPM (Liu et al. 2024, Figure 4c), in the order in which its layers are printed; sides from 2 pixels up.

    The first of its fully connected layers stands between two convolutions, so it is read as one at each position, over the channels.
    """
    channels, height, width = shape
    first, second = DPPM_WIDTHS
    return nn.Sequential(
        nn.Conv2d(channels, first, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(second, second, 1),
        nn.ReLU(),
        nn.Conv2d(second, second, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(second * (height // 2) * (width // 2), DPPM_HIDDEN),
        nn.ReLU(),
        nn.Linear(DPPM_HIDDEN, classes),
    )


def resnet9(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Eight convolutions, four of them in two residual pairs, and a linear layer; sides from 8 pixels up."""
    first, second, third, last = RESNET_WIDTHS
    return nn.Sequential(
        _convolution(shape[0], first),
        _convolution(first, second, pool=2),
        _Residual(second),
        _convolution(second, third, pool=2),
        _convolution(third, last, pool=2),
        _Residual(last),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(last, classes),
    )


class _Residual(nn.Module):
    """x + two convolutions of x."""

    def __init__(self, channels: int):
        super().__init__()
        self.inner = nn.Sequential(_convolution(channels, channels), _convolution(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def _convolution(channels_in: int, channels_out: int, *, pool: int = 1) -> nn.Module:
    parts = [nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU()]
    return nn.Sequential(*parts, *([nn.MaxPool2d(pool)] if pool > 1 else []))


def steps(images: int, epochs: int) -> int:
    """Optimiser steps that `trained` takes, by the number of images."""
    return epochs * -(-(images - held_back(images)) // BATCH_IMAGES)


def held_back(images: int) -> int:
    """Number of synthetic images that choose the epoch."""
    return max(1, round(VALIDATION_SHARE * images))


def trained(
    build: Callable[[tuple[int, int, int], int], nn.Module],
    images: Tensor,
    labels: Tensor,
    classes: int,
    *,
    epochs: int,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress = silent,
) -> nn.Module:
    """The network trained on images [n, c, h, w] in [-1, 1] with labels int64 [n], n >= 2, at its best epoch.

    The global random state is untouched.

    Many parameters: data, the settings of the training, and what shows or interrupts it.
    """
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        # Channels last: the same sums, a third faster on a CPU.
        model = build(shape_of(images), classes).to(device).to(memory_format=torch.channels_last)
        order = torch.randperm(len(images))
        held, taught = order.tensor_split([held_back(len(images))])
        images, labels = images.to(device, torch.float32), labels.to(device)
        images = images.contiguous(memory_format=torch.channels_last)
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
        best, best_state, done, total = -1.0, model.state_dict(), 0, steps(len(images), epochs)
        for _ in range(epochs):
            model.train()
            for drawn in taught[torch.randperm(len(taught))].split(BATCH_IMAGES):
                if len(drawn) > 1 or len(taught) == 1:  # a batch of one has no variance to normalise by
                    loss = F.cross_entropy(model(images[drawn.to(device)]), labels[drawn.to(device)])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                done += 1
                progress(done, total)
            right = float((read(model, images[held.to(device)]) == labels[held.to(device)].cpu()).double().mean())
            if right > best:
                best, best_state = right, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    return model.eval()


def read(model: nn.Module, images: Tensor) -> Tensor:
    """The class of each image [n, c, h, w]: int64 [n] on the CPU."""
    return probabilities(model, images).argmax(1)


def probabilities(model: nn.Module, images: Tensor) -> Tensor:
    """Class probabilities of images [n, c, h, w]: float32 [n, classes] on the CPU."""
    device = next(model.parameters()).device
    model.eval()
    with torch.inference_mode():
        pieces = [model(piece.to(device, torch.float32)).softmax(1).cpu() for piece in images.split(READ_IMAGES)]
    return torch.cat(pieces).clone()
