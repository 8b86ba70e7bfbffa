"""Writes and reads the small CNN of public images; a file of its own, so that paid stages do not depend on how they are judged."""

from pathlib import Path

import torch

from artifacts.serialization import load, save
from sfumato.evaluation.classifier import Classifier


def save_classifier(folder: Path, model: Classifier, shape: tuple[int, int, int], trained_on: str) -> None:
    """Write weights, the arguments to build the classifier again, and the name of the public images."""
    facts = {"shape": list(shape), "classes": model.head.out_features, "trained_on": trained_on}
    save(folder, dict(model.state_dict()), facts)


def load_classifier(folder: Path, device: torch.device) -> tuple[Classifier, str]:
    """A frozen classifier in evaluation mode, and the name of the images that it was trained on."""
    tensors, facts = load(folder)
    channels, *sides = facts["shape"]
    model = Classifier(channels, facts["classes"], side=max(sides))
    model.load_state_dict(tensors)
    return model.to(device).eval().requires_grad_(False), facts["trained_on"]
