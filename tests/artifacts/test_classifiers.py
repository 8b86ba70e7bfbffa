"""The small CNN of public images, written and read."""

import torch

from artifacts import classifiers
from sfumato.evaluation.classifier import Classifier
from tests.sfumato.test_formats import CPU, same_weights, scrambled


def test_a_classifier_comes_back_frozen_and_knows_its_images(tmp_path):
    model = scrambled(Classifier(3, 7, side=10)).eval()
    classifiers.save_classifier(tmp_path, model, (3, 8, 10), "letters+photos")
    result, name = classifiers.load_classifier(tmp_path, CPU)
    same_weights(model.state_dict(), result.state_dict())
    x = torch.randn(3, 3, 8, 10)
    assert torch.equal(result(x), model(x).detach()) and name == "letters+photos"
    assert not result.training and not any(parameter.requires_grad for parameter in result.parameters())
