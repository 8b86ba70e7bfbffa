"""The extractors of the features in which images are compared: the small CNN, or the Inception network of published FIDs.

Numbers from two extractors do not compare: each set of scores names its own, and `only_extractor` refuses a table with
two. Inception is torchmetrics' (by torch-fidelity, the weights of Szegedy et al. 2015 that all published FIDs use); it
resizes as those do. The weights lie in torch's hub folder; this file checks them by the digest in their name and reads them
without running code before any library opens them.

Label: neither has seen a private image: the small CNN (`sfumato.evaluation.classifier`) learns the classes of the run's public
images. Its values on private images are INTERNAL all the same.
Not covered: whether features learnt on photographs, or on the public images, suit the private ones.
"""

import hashlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.errors import BadInput, first_line
from sfumato.evaluation.classifier import FEATURES, Classifier, features, predict
from sfumato.images import MIDDLE

Choice = Literal["auto", "cnn", "inception"]
CNN = "hidden layer ({} features) of a small CNN trained on public images ({}, {} classes); not Inception"
LATENTS = "latents of the public autoencoder"
WIDEST_LATENTS = 128
"""Largest number of values of a latent that are compared: a distance needs more images than values, and time by their square."""
DIRECTIONS = 64
"""Directions of a backbone's features that are compared."""
BACKBONE = f"{DIRECTIONS} widest directions of the public backbone's features"
EYES_BATCH = 512
"""Images per batch of these."""
INCEPTION_FEATURES = 2048
INCEPTION = f"Inception v3 ({INCEPTION_FEATURES} features), the weights of published FIDs"
PACKAGE = "torch_fidelity"
WEIGHTS = "weights-inception-2015-12-05-6726825d.pth"
"""The file's name in torch-fidelity; the last part is the beginning of its sha256."""
INCEPTION_BATCH = 64
"""Images that Inception reads at once."""


@dataclass(frozen=True)
class FeatureReader:
    """A feature extractor."""

    name: str
    """Name of the extractor, shown beside every score."""
    width: int
    """Features of an image."""
    read: Callable[[Tensor], tuple[Tensor, Tensor]]
    """Images [n, c, h, w] in [-1, 1] to features [n, width] and class probabilities [n, classes], on the CPU."""

    def features(self, images: Tensor) -> Tensor:
        """Features of images [n, c, h, w] in [-1, 1], [n, width]."""
        return self.read(images)[0]


@dataclass(frozen=True)
class Eyes:
    """A further feature space for a Frechet distance, beside the extractor's."""

    name: str
    """Name of the features, shown beside the score."""
    read: Callable[[Tensor], Tensor]
    """Images [n, c, h, w] in [-1, 1] to features [n, d], on the CPU."""


def latents(encode: Callable[[Tensor], Tensor], device: str | torch.device) -> Eyes:
    """Latents of the run's public autoencoder, averaged over neighbouring positions until at most `WIDEST_LATENTS` numbers are left.

    `encode` takes images [n, c, h, w] in [-1, 1] on `device` to latents [n, z, h', w'].
    """

    def read(images: Tensor) -> Tensor:
        pieces = [_few(encode(piece.to(device, torch.float32))).flatten(1).cpu() for piece in images.split(EYES_BATCH)]
        return torch.cat(pieces)

    return Eyes(LATENTS, read)


def backbone(whitened: Callable[[Tensor, int], Tensor], device: str | torch.device) -> Eyes:
    """The `DIRECTIONS` widest directions of the features of the run's public backbone, each of deviation 1 on public images.

    `whitened` takes images [n, c, h, w] in [-1, 1] on `device` and the number of directions to features [n, directions].
    """

    def read(images: Tensor) -> Tensor:
        with torch.no_grad():
            pieces = [whitened(piece.to(device, torch.float32), DIRECTIONS).cpu() for piece in images.split(EYES_BATCH)]
        return torch.cat(pieces)

    return Eyes(BACKBONE, read)


def _few(z: Tensor) -> Tensor:
    """Latents [n, z, h, w] averaged over squares of 2, 3, ... positions until at most `WIDEST_LATENTS` numbers are left."""
    side = max(z.shape[2:])
    fitting = (F.avg_pool2d(z, times, ceil_mode=True) for times in range(1, side + 1))
    return next((few for few in fitting if few[0].numel() <= WIDEST_LATENTS), z.mean((2, 3), keepdim=True))


def small_cnn(model: Classifier, trained_on: str) -> FeatureReader:
    """The features of a CNN trained on the public images of that name, and its class probabilities."""
    name = cnn_name(trained_on, model.head.out_features)
    return FeatureReader(name, FEATURES, lambda images: (features(model, images), predict(model, images)))


def cnn_name(trained_on: str, classes: int) -> str:
    """Name in the scores of a small CNN trained on this many classes of public images of that name."""
    return CNN.format(FEATURES, trained_on, classes)


def chosen(choice: Choice) -> Literal["cnn", "inception"]:
    """The extractor for a setting on this machine.

    `inception` fetches missing weights and is `BadInput` where it cannot have them; `auto` fetches nothing and takes the
    small CNN instead.
    """
    if choice == "auto":
        return "cnn" if _obstacle() else "inception"
    if choice == "inception":
        if _installed() and not weights_path().exists():
            _fetch()
        if obstacle := _obstacle():
            raise BadInput(f"evaluation.features=inception: {obstacle}, or use --set evaluation.features=cnn")
    return choice


def weights_path() -> Path:
    """Path of the weights of Inception."""
    return Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS


def inception(device: str | torch.device) -> FeatureReader:
    """Inception v3 as published FIDs use it; grey images are shown in three equal channels."""
    chosen("inception")
    from torchmetrics.image.fid import NoTrainInceptionV3

    try:  # torch-fidelity would run code that it finds in the file; this stops at anything but tensors
        torch.hub.load_state_dict_from_url(WEIGHTS, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = first_line(error)
        raise BadInput(f"the weights at {weights_path()} cannot be read ({reason}): delete them") from None
    network = NoTrainInceptionV3(
        "inception-v3-compat", [str(INCEPTION_FEATURES)], str(weights_path()), antialias=False
    ).to(device)

    def read(images: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        with torch.inference_mode():
            for piece in images.split(INCEPTION_BATCH):
                coloured = piece.expand(-1, 3, -1, -1) if piece.shape[1] == 1 else piece
                pixels = ((coloured.clamp(-1, 1) + 1) * MIDDLE).round().to(torch.uint8)
                outputs.append(network(pixels.to(device)))
            # Published Inception scores leave the bias of the last layer out.
            features = torch.cat(outputs)
            probabilities = (features @ network.fc.weight.T).softmax(1)
        return features.cpu().clone(), probabilities.cpu().clone()

    return FeatureReader(INCEPTION, INCEPTION_FEATURES, read)


def only_extractor(names: Iterable[str]) -> str:
    """The one extractor that all these scores were measured with; `BadInput` where there are two, "" where there is none."""
    distinct = sorted(set(names))
    if len(distinct) > 1:
        raise BadInput(
            f"scores from two feature extractors in one table ({'; '.join(distinct)}): judge all sets with one, by the same "
            "data.public or by evaluation.features=inception"
        )
    return distinct[0] if distinct else ""


def _obstacle() -> str:
    """The reason why Inception cannot be used here, and the way out; "" if it can."""
    path = weights_path()
    if not _installed():
        return "the package torch-fidelity is missing: pip install 'sfumato[inception]'"
    if not path.is_file():
        return f"no weights at {path}: put them there"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(_digest_start()):
        return f"the weights at {path} are damaged (sha256 {digest[:8]}...): delete them"
    return ""


def _installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


def _fetch() -> None:
    """Download the weights to their place, completely or not at all."""
    path = weights_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(_address(), str(path), _digest_start(), progress=False)
    except (OSError, RuntimeError) as error:
        raise BadInput(
            f"evaluation.features=inception: no weights at {path}, and they cannot be fetched ({error}): put them there, or "
            "use --set evaluation.features=cnn"
        ) from None


def _address() -> str:
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

    return URL_INCEPTION_V3


def _digest_start() -> str:
    return WEIGHTS.removesuffix(".pth").rsplit("-", 1)[1]
