"""A classifier of the public images whose features serve reconstructions, rehearsals, scores and the paid linear judge.

It learns the public classes under random affine maps and never sees a private image, so its values on images that may be shown
may be shown too. Its features come with their mean and principal directions on public images, so that a mechanism which bounds a
record's features knows their scale beforehand.

Not covered: bit-equal results across devices, thread counts or versions of torch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato import config
from sfumato.errors import BadInput
from sfumato.held_out import positions
from sfumato.images import ImageSet, shape_of, to_unit
from sfumato.networks.backbone import FEATURES_PER_CHANNEL, BackboneNetwork
from sfumato.progress import Progress, silent
from sfumato.resuming import Keeper
from sfumato.training import Resumable, batches, half_products, train
from sfumato.turns import turned_if_one_class

CHUNK = 1000
"""Images per batch without training."""
WARM_UP, FINAL_RATE, EMA_DECAY = 0.1, 0.01, 0.99
"""Share of the steps over which the learning rate rises, share of it that is left at the last step, decay of the weights' average."""
LEAST_CLASSES = 2
"""Smallest number of public classes for a classifier."""
MEASURED = 5000
"""Public images whose features give the mean and the directions, at most."""
FLAT = 1e-3
"""Share of the largest deviation below which a direction is taken for constant: dividing by it would only enlarge rounding."""


def features_of(settings: config.BackboneSettings) -> int:
    """Number of features of a backbone with these settings."""
    return FEATURES_PER_CHANNEL * settings.width


@dataclass(frozen=True, eq=False)
class Backbone:
    """A trained classifier of public images with the scale of its features."""

    network: BackboneNetwork
    settings: config.BackboneSettings
    shape: tuple[int, int, int]
    """Channels, height and width of the images."""
    classes: int
    mean: Tensor
    """`[d]`, of the features of public images."""
    directions: Tensor
    """`[d, d]`, a principal direction of these in each column, the widest first."""
    deviations: Tensor
    """`[d]`, standard deviations along them."""

    @property
    def width(self) -> int:
        """d, the number of features."""
        return len(self.mean)

    def features(self, images: Tensor) -> Tensor:
        """`[n, d]` of images `[n, c, h, w]` in [-1, 1]; differentiable where gradients are on. `BadInput` for another shape."""
        return self._read(self.network.features, images)

    def logits(self, images: Tensor) -> Tensor:
        """`[n, classes]` of images `[n, c, h, w]` in [-1, 1]; differentiable where gradients are on. `BadInput` for another shape."""
        return self._read(self.network, images)

    def whitened(self, images: Tensor, directions: int) -> Tensor:
        """Features along the widest `directions`, each of mean 0 and deviation 1 on public images: `[n, directions]`."""
        least = FLAT * self.deviations[0]
        scale = self.directions[:, :directions] / self.deviations[:directions].clamp(min=least)
        return (self.features(images) - self.mean) @ scale

    def whitening_reader(self, directions: int) -> Callable[[Tensor], Tensor]:
        """`whitened` along this many directions, without gradients: from images `[n, c, h, w]` in [-1, 1] to `[n, directions]`."""

        @torch.no_grad()
        def read(images: Tensor) -> Tensor:
            return self.whitened(images, directions)

        return read

    def _read(self, function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        if shape_of(images) != self.shape:
            raise BadInput(f"the backbone reads images of {list(self.shape)}, not of {list(images.shape[1:])}")
        if not len(images):  # which group norm does not take
            return function(images.new_zeros(1, *self.shape))[:0]
        return torch.cat([function(part) for part in images.split(CHUNK)])


@dataclass(frozen=True)
class TrainedBackbone:
    """A backbone with the course of its training."""

    backbone: Backbone
    losses: list[float]
    accuracy: float
    """On public images that it did not learn from."""


def train_backbone(
    settings: config.BackboneSettings,
    images: ImageSet,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
    keeper: Keeper | None = None,
) -> TrainedBackbone:
    """Train a classifier of public images, all but those that every public stage holds out, and measure the scale of its features.

    The global random state is untouched.

    Images of one class teach it to tell turns apart (`sfumato.turns`). `BadInput` where all are of one of several classes.
    """
    images = turned_if_one_class(images)
    if len(set(images.labels.tolist())) < LEAST_CLASSES:
        raise BadInput(
            f"the public images are all of one class ({len(images)} of {images.classes[:1]}): a backbone learns to tell classes apart, "
            "so sort them into two or more, or take another data.public"
        )
    learnt, tested = positions(len(images), seed)
    y, classes = torch.from_numpy(images.labels), len(images.classes)

    def shown(rows: Tensor) -> Tensor:  # the collection itself stays in bytes
        return to_unit(images.pixels[rows.numpy()]).to(device)

    shape = shape_of(shown(learnt[:1]))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = BackboneNetwork(shape, classes, width=settings.width).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    feed = batches(len(learnt), settings.batch, torch.Generator().manual_seed(seed))

    def loss_of_step() -> Tensor:
        index = learnt[next(feed)]
        moved = affine(shown(index), settings, generator)
        with half_products(moved.device):
            return F.cross_entropy(network(moved), y[index].to(device))

    trained, losses = train(
        network,
        loss_of_step,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        warm_up=round(WARM_UP * settings.steps),
        final_rate=FINAL_RATE,
        ema_decay=min(EMA_DECAY, 1 - 1 / settings.steps),
        progress=progress,
        resumable=Resumable(keeper, feed, generator) if keeper else None,
    )
    trained = trained.eval().requires_grad_(False)
    backbone = whitening(trained, settings, shown(learnt[:MEASURED]), classes)
    with torch.no_grad():
        right = backbone.logits(shown(tested)).argmax(1).cpu() == y[tested]
    return TrainedBackbone(backbone, losses, float(right.float().mean()))


@torch.no_grad()
def whitening(network: BackboneNetwork, settings: config.BackboneSettings, images: Tensor, classes: int) -> Backbone:
    """The backbone with the mean and the principal directions of its features on public images `[n, c, h, w]`."""
    features = torch.cat([network.features(part) for part in images.split(CHUNK)]).double()
    mean = features.mean(0)
    values, vectors = torch.linalg.eigh((features - mean).T @ (features - mean) / len(features))
    scale = {"directions": vectors.flip(1).float(), "deviations": values.clamp(min=0).sqrt().flip(0).float()}
    return Backbone(network, settings, shape_of(images), classes, mean.float(), **scale)


def affine(images: Tensor, settings: config.BackboneSettings, generator: torch.Generator) -> Tensor:
    """Each image `[n, c, h, w]` under a random affine map of its own: rotated, sheared, scaled, shifted, mirrored as the settings say."""

    def symmetric(*shape: int) -> Tensor:
        return 2 * torch.rand(len(images), *shape, generator=generator, device=images.device) - 1

    angle, shear = settings.rotation * symmetric(), settings.shear * symmetric()
    across, down = (1 + settings.scale * symmetric(2)).unbind(1)
    if settings.mirror:
        across = across * symmetric().sign()
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    one, none = torch.ones_like(shear), torch.zeros_like(shear)
    lean = torch.stack([torch.stack([one, shear], 1), torch.stack([none, one], 1)], 1)
    matrix = turn @ lean * torch.stack([across, down], 1)[:, None, :]
    moved = torch.cat([matrix, 2 * settings.shift * symmetric(2)[:, :, None]], 2)
    grid = F.affine_grid(moved, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode=settings.edge, align_corners=False)
