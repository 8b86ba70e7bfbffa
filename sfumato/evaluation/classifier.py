"""A small CNN for images: the features of fidelity, the reader of readability, and one of the classifiers of utility.

Convolutions halve the image down to 4 x 4 or less, GroupNorm keeps records independent of each other, the result is
pooled to 2 x 2, and a hidden layer of 64 numbers feeds the classes. Those 64 numbers are the `features` in which
`sfumato.evaluation.fidelity` compares image sets. They are not Inception features: a distance measured in them compares
with others from the same classifier and with no published FID.

Label: a classifier trained on private images is INTERNAL, and so is all that it says. One trained on public or on
synthetic images is as public as they are.
Not covered: bit-equal results across devices, thread counts or versions of torch. Within one, on a CPU, a seed fixes
every bit.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import BadInput
from sfumato.images import ImageSet, to_unit
from sfumato.progress import Progress
from sfumato.turns import turned_if_one_class

FEATURES = 64
"""Width of the hidden layer whose values are the features."""
FIRST_WIDTH, MOST_WIDTH = 16, 64
"""Channels of the first convolution, doubled each time that the image is halved, up to the second number: enough to tell small images apart, and
cheap on a CPU."""
LEAST_SIDE = 4
"""Side in pixels at which the image is halved no more."""
POOLED = 2
"""Side of the maps that the hidden layer reads."""
GROUPS = 8
"""Groups of channels that are normalised together; it divides every width."""
BATCH_IMAGES = 128
"""Images per optimiser step."""
LEAST_STEPS, LEAST_EPOCHS, MOST_STEPS = 200, 5, 1500
"""Training lasts as long as the longer of the first two, and no longer than the last; 200 steps suffice for a few thousand images of 8x8,
and after 1,500 so small a network learns little more from any number of images."""
PEAK_RATE, WARM_UP, WEIGHT_DECAY = 3e-3, 0.25, 1e-2
"""AdamW's learning rate rises linearly to its peak over this share of the steps, then falls linearly to zero."""
JITTER = 0.2
"""Standard deviation of the pixel noise added in training (pixels in [-1, 1]); it helps a little at 8x8."""
RANGE_SLACK = 1e-3
"""Largest distance of a pixel outside [-1, 1] that rounding explains."""
READ_IMAGES = 1024
"""Images read at once where nothing is trained."""
FULL = 32
"""Side in pixels up to which the first convolution is taken at every pixel; above, at every other one, which takes a third of the time."""
LARGE = 16
"""Side in pixels above which the layout that puts channels last is the faster one on a CPU."""
ROUND = 25
"""Steps over which the loss is averaged where training may end early."""


class Classifier(nn.Module):
    """CNN from images [n, channels, h, w] in [-1, 1] to logits [n, classes]; `side` = max(h, w) in pixels."""

    def __init__(self, channels: int, classes: int, *, side: int):
        super().__init__()
        large, stride = side > LARGE, 2 if side > FULL else 1
        width, blocks, side = FIRST_WIDTH, [_block(channels, FIRST_WIDTH, stride=stride)], -(-side // stride)
        while side > LEAST_SIDE:
            wider, side = min(2 * width, MOST_WIDTH), (side + 1) // 2
            blocks.append(_block(width, wider, stride=2))
            width = wider
        blocks.append(_block(width, width, stride=1))
        self.trunk = nn.Sequential(*blocks)
        self.hidden = nn.Linear(POOLED**2 * width, FEATURES)
        self.head = nn.Linear(FEATURES, classes)
        self.layout = torch.channels_last if large else torch.contiguous_format
        self.to(memory_format=self.layout)

    def features(self, images: Tensor) -> Tensor:
        """Values of the hidden layer, [n, 64]."""
        images = images.contiguous(memory_format=self.layout)
        return F.silu(self.hidden(_pool(self.trunk(images)).flatten(1)))

    def forward(self, images: Tensor) -> Tensor:
        """See the class."""
        return self.head(self.features(images))


def _block(channels_in: int, channels_out: int, *, stride: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride, 1), nn.GroupNorm(GROUPS, channels_out), nn.SiLU()
    )


def _pool(x: Tensor) -> Tensor:
    """Adaptive average pooling [n, c, h, w] -> [n, c, 2, 2]; the plain pool, far faster on a CPU, where they agree."""
    height, width = x.shape[2:]
    return (
        F.adaptive_avg_pool2d(x, POOLED)
        if height % POOLED or width % POOLED
        else F.avg_pool2d(x, (height // POOLED, width // POOLED))
    )


def check_images(images: Tensor, labels: Tensor, classes: int, *, name: str) -> None:
    """Raise BadInput unless images are finite floats [n, c, h, w] in [-1, 1], n >= 1, labels int64 [n] < classes."""
    if images.dim() != 4 or not images.is_floating_point() or len(images) == 0:
        raise BadInput(f"{name}: {images.dtype} {list(images.shape)} is no image set; give floats [n, c, h, w], n >= 1")
    broken = int((~images.isfinite()).flatten(1).any(1).sum())
    if broken:
        raise BadInput(f"{name}: {broken} of {len(images)} hold NaN or infinite pixels; was the training stable?")
    extreme = float(images.abs().max())
    if extreme > 1 + RANGE_SLACK:
        raise BadInput(f"{name}: a pixel is {extreme:.4g} away from 0; scale or clamp the images to [-1, 1]")
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64:
        raise BadInput(f"{name}: labels are {labels.dtype} {list(labels.shape)}; give int64 [{len(images)}]")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        span = f"{int(labels.min())} to {int(labels.max())}"
        raise BadInput(f"{name}: labels run from {span}; with {classes} classes they must lie in 0 to {classes - 1}")


def default_steps(images: int) -> int:
    """Optimiser steps that `train_classifier` takes by default, by the number of images."""
    return min(MOST_STEPS, max(LEAST_STEPS, -(-LEAST_EPOCHS * images // BATCH_IMAGES)))


def train_classifier(
    images: Tensor,
    labels: Tensor,
    classes: int,
    *,
    steps: int | None = None,
    jitter: float = JITTER,
    enough: float = 0.0,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Classifier:
    """Train a Classifier on images [n, c, h, w] in [-1, 1] with labels int64 [n]; the global random state is untouched.

    Plain cross-entropy without privacy: on private images the classifier is INTERNAL. `steps`: see `default_steps`;
    `jitter`: standard deviation of the pixel noise; `enough`: mean loss of a `ROUND` of steps below which training ends early, by
    default never.

    Many parameters: data, the settings of the training, and what shows or interrupts it.
    """
    check_images(images, labels, classes, name="images to train a classifier on")
    count, steps = len(images), default_steps(len(images)) if steps is None else steps
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Classifier(images.shape[1], classes, side=max(images.shape[2:])).to(device).train()
    images, labels = images.to(device, torch.float32), labels.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    queue, losses = torch.empty(0, dtype=torch.int64), torch.zeros(ROUND, device=device)
    for step in range(steps):
        while len(queue) < BATCH_IMAGES:
            queue = torch.cat([queue, torch.randperm(count, generator=generator)])
        drawn, queue = queue[:BATCH_IMAGES].to(device), queue[BATCH_IMAGES:]
        done = (step + 0.5) / steps
        optimizer.param_groups[0]["lr"] = PEAK_RATE * min(done / WARM_UP, (1 - done) / (1 - WARM_UP))
        noise = torch.randn(len(drawn), *images.shape[1:], generator=generator).to(device)
        loss = F.cross_entropy(model(images[drawn] + jitter * noise), labels[drawn])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step % ROUND] = loss.detach()
        over = enough > 0 and (step + 1) % ROUND == 0 and float(losses.mean()) < enough
        if progress is not None:
            progress(steps if over else step + 1, steps)
        if over:
            break
    return model.eval()


def classifier_of(
    images: ImageSet, *, seed: int = 0, device: str | torch.device = "cpu", progress: Progress | None = None
) -> Classifier:
    """A classifier that tells the classes of an image set apart, or turns where all are of one (`sfumato.turns`)."""
    images = turned_if_one_class(images)
    x, y = to_unit(images.pixels), torch.from_numpy(images.labels)
    return train_classifier(x, y, len(images.classes), seed=seed, device=device, progress=progress)


def predict(model: Classifier, images: Tensor) -> Tensor:
    """Class probabilities of images [n, c, h, w] in [-1, 1]: float32 [n, classes] on the CPU."""
    return _in_pieces(lambda piece: model(piece).softmax(1), model, images)


def features(model: Classifier, images: Tensor) -> Tensor:
    """Features of images [n, c, h, w] in [-1, 1] in the model's hidden layer: float32 [n, 64] on the CPU."""
    return _in_pieces(model.features, model, images)


def features_and_classes(model: Classifier) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """From images [n, c, h, w] in [-1, 1] to features [n, 64] and the likeliest classes int64 [n], on the CPU."""
    return lambda images: (features(model, images), predict(model, images).argmax(1))


def _in_pieces(function: Callable[[Tensor], Tensor], model: nn.Module, images: Tensor) -> Tensor:
    device = next(model.parameters()).device
    with torch.inference_mode():
        read = torch.cat([function(piece.to(device, torch.float32)).cpu() for piece in images.split(READ_IMAGES)])
    return read.clone()  # outside inference mode, so that the caller may use it anywhere
