"""Sources written for tests, and the one line that a refusal is."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.errors import BadInput


def refused(*words: str):
    """Expects a BadInput in one line that holds all words."""
    pattern = "".join(f"(?=.*{re.escape(word)})" for word in words)
    return pytest.raises(BadInput, match=rf"^{pattern}[^\n]*$")


def draw(rng: np.random.Generator, height: int = 8, width: int = 8, channels: int = 1) -> Image.Image:
    pixels = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)


def write_folder(root: Path, counts: dict[str, int], suffix: str = ".png", channels: int = 1, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            draw(rng, channels=channels).save(root / name / f"{i:03}{suffix}")
    return root


def write_idx(path: Path, values: np.ndarray) -> None:
    head = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    data = head + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_mnist_like(root: Path, *, train: int = 30, test: int = 10, end: str = ".gz", seed: int = 0) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for beginning, count in (("train", train), ("t10k", test)):
        write_idx(root / f"{beginning}-images-idx3-ubyte{end}", rng.integers(0, 256, (count, 6, 6)))
        write_idx(root / f"{beginning}-labels-idx1-ubyte{end}", np.arange(count) % 3 + 4)
    return root
