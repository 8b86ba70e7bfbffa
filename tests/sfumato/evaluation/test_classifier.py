import pytest
import torch
import torch.nn.functional as F

from sfumato.errors import BadInput
from sfumato.evaluation import classifier
from sfumato.evaluation.classifier import Classifier, default_steps, features, predict, train_classifier


def accuracy(model, images, labels):
    return float((predict(model, images).argmax(1) == labels).double().mean())


def test_learns_the_real_digits(digits, reader):
    assert accuracy(reader, digits.test, digits.test_labels) > 0.96


def test_shuffled_labels_teach_nothing(digits):
    shuffled = digits.train_labels[torch.randperm(1437, generator=torch.Generator().manual_seed(1))]
    model = train_classifier(digits.train, shuffled, 10, steps=60)
    assert accuracy(model, digits.test, digits.test_labels) < 0.25


def test_probabilities_and_features_have_the_promised_shapes(digits, reader):
    probabilities, values = predict(reader, digits.test), features(reader, digits.test)
    assert probabilities.shape == (360, 10) and probabilities.dtype == torch.float32
    torch.testing.assert_close(probabilities.sum(1), torch.ones(360))
    assert values.shape == (360, classifier.FEATURES) and not values.requires_grad and not values.is_inference()
    torch.testing.assert_close(reader.head(values).softmax(1), probabilities)


def test_reading_in_pieces_changes_nothing(digits, reader, monkeypatch):
    whole = predict(reader, digits.test[:50])
    monkeypatch.setattr(classifier, "READ_IMAGES", 7)
    torch.testing.assert_close(predict(reader, digits.test[:50]), whole)


def test_one_image_does_not_see_another(digits, reader):
    alone = features(reader, digits.test[:1])
    torch.testing.assert_close(features(reader, digits.test[:9])[:1], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "channels, height, width", [(1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 20, 12), (3, 64, 64), (1, 5, 3)]
)
def test_trains_on_every_size(channels, height, width):
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(6, channels, height, width, generator=generator) * 2 - 1, torch.tensor([0, 1, 2] * 2)
    model = train_classifier(images, labels, 3, steps=2)
    assert predict(model, images).shape == (6, 3) and features(model, images).shape == (6, classifier.FEATURES)


@pytest.mark.parametrize("height, width", [(4, 4), (2, 4), (3, 4), (3, 3), (1, 1)])
def test_the_short_cut_of_the_pool_is_the_adaptive_pool(height, width):
    x = torch.randn(2, 5, height, width)
    torch.testing.assert_close(classifier._pool(x), F.adaptive_avg_pool2d(x, 2))


def test_a_seed_fixes_the_model_and_the_global_state_stays(digits):
    models = []
    for seed, elsewhere in ((7, 1), (7, 2), (8, 1)):
        torch.manual_seed(elsewhere)
        before = torch.random.get_rng_state()
        models.append(train_classifier(digits.train, digits.train_labels, 10, steps=5, seed=seed))
        assert torch.equal(torch.random.get_rng_state(), before)
    first, again, other = models
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert not torch.equal(first.head.weight, other.head.weight)


def test_training_leaves_the_images_alone_and_takes_other_floats(digits):
    images = digits.train[:20].double()
    retained = images.clone()
    model = train_classifier(images, digits.train_labels[:20], 10, steps=2)
    assert torch.equal(images, retained) and predict(model, images).dtype == torch.float32


def test_progress_counts_every_step(digits):
    heard = []
    train_classifier(digits.train, digits.train_labels, 10, steps=3, progress=lambda *step: heard.append(step))
    assert heard == [(1, 3), (2, 3), (3, 3)]


def test_steps_grow_with_the_images():
    assert default_steps(1) == default_steps(2000) == classifier.LEAST_STEPS
    assert default_steps(30_000) == 1172  # 5 epochs of 30,000 in batches of 128
    assert default_steps(60_000) == classifier.MOST_STEPS


def test_the_network_is_deep_enough_for_its_side_only():
    depths = [len(Classifier(1, 10, side=side).trunk) for side in (8, 32, 64, 128)]
    assert depths == [3, 5, 5, 6], "above 32 pixels the first convolution halves the image"


GOOD, LABELS = torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])


def broken_pixel(value):
    images = GOOD.clone()
    images[2, 0, 3, 3] = value
    return images


@pytest.mark.parametrize(
    "images, labels, message",
    [
        (GOOD[0], LABELS, "is no image set"),
        (GOOD.to(torch.uint8), LABELS, "torch.uint8"),
        (GOOD[:0], LABELS[:0], "n >= 1"),
        (broken_pixel(float("nan")), LABELS, "1 of 4 hold NaN"),
        (broken_pixel(float("inf")), LABELS, "1 of 4 hold NaN or infinite"),
        (broken_pixel(255.0), LABELS, "a pixel is 255 away from 0"),
        (GOOD, LABELS[:3], r"give int64 \[4\]"),
        (GOOD, LABELS.float(), "torch.float32"),
        (GOOD, LABELS + 1, "1 to 3; with 3 classes they must lie in 0 to 2"),
        (GOOD, LABELS - 1, "-1 to 1"),
    ],
)
def test_refuses_what_is_no_labelled_image_set(images, labels, message):
    with pytest.raises(BadInput, match=message) as caught:
        train_classifier(images, labels, 3, steps=1)
    assert "\n" not in str(caught.value)
