"""The path to Inception without a network: no weights, damaged weights, weights that would run code, random weights."""

import hashlib
import urllib.error
from pathlib import Path

import pytest
import torch

from sfumato.errors import BadInput
from sfumato.evaluation import extractors
from sfumato.evaluation.classifier import FEATURES, features, predict
from sfumato.evaluation.extractors import INCEPTION, WEIGHTS, chosen, cnn_name, inception, only_extractor, small_cnn


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """An empty hub folder, torch-fidelity as if it were installed, and nothing to be fetched."""
    before = torch.hub.get_dir()
    torch.hub.set_dir(str(tmp_path))
    monkeypatch.setattr(extractors, "_installed", lambda: True)
    monkeypatch.setattr(extractors, "_address", lambda: "https://weights.invalid/file.pth")

    def offline(*_, **__):
        raise urllib.error.URLError("no network here")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    yield tmp_path / "checkpoints"
    torch.hub.set_dir(before)


def put(hub: Path, content: bytes, monkeypatch) -> Path:
    """A file of weights that its name's digest fits."""
    hub.mkdir(exist_ok=True)
    name = f"weights-inception-2015-12-05-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    monkeypatch.setattr(extractors, "WEIGHTS", name)
    (hub / name).write_bytes(content)
    return hub / name


def test_the_small_cnn_reads_what_its_classifier_reads_and_says_on_what_it_was_trained(digits, public_model):
    extractor = small_cnn(public_model, "glyphs")
    read, probabilities = extractor.read(digits.test)
    assert torch.equal(read, features(public_model, digits.test)) and read.shape[1] == extractor.width == FEATURES
    assert torch.equal(probabilities, predict(public_model, digits.test)) and probabilities.shape[1] == 52
    assert "trained on public images (glyphs, 52 classes); not Inception" in extractor.name


def test_without_weights_auto_takes_the_cnn_and_inception_is_refused_in_one_line(hub):
    assert chosen("cnn") == "cnn" and chosen("auto") == "cnn"
    with pytest.raises(BadInput, match="no weights at .*, and they cannot be fetched .*no network here") as caught:
        chosen("inception")
    assert WEIGHTS in str(caught.value) and "evaluation.features=cnn" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_auto_fetches_nothing(hub, monkeypatch):
    def never(*_, **__):
        raise AssertionError("it went out for the weights")

    monkeypatch.setattr(torch.hub, "download_url_to_file", never)
    assert chosen("auto") == "cnn" and not hub.exists()


def test_inception_fetches_missing_weights_with_their_digest(hub, monkeypatch):
    content = b"weights"
    path = put(hub, content, monkeypatch)
    path.unlink()

    def fetch(url, place, start, progress):
        assert hashlib.sha256(content).hexdigest().startswith(start) and len(start) == 8
        Path(place).write_bytes(content)

    monkeypatch.setattr(torch.hub, "download_url_to_file", fetch)
    assert chosen("inception") == "inception" and path.read_bytes() == content


def test_with_weights_auto_takes_inception(hub, monkeypatch):
    put(hub, b"weights", monkeypatch)
    assert chosen("auto") == "inception" == chosen("inception")


def test_damaged_weights_are_not_used(hub, monkeypatch):
    path = put(hub, b"weights", monkeypatch)
    path.write_bytes(b"weighty")
    assert chosen("auto") == "cnn"
    with pytest.raises(BadInput, match=f"the weights at {path} are damaged .*: delete them, or use --set"):
        chosen("inception")


def test_without_the_package_auto_takes_the_cnn_and_inception_says_so(hub, monkeypatch):
    put(hub, b"weights", monkeypatch)
    monkeypatch.setattr(extractors, "_installed", lambda: False)
    assert chosen("auto") == "cnn"
    with pytest.raises(
        BadInput, match=r"the package torch-fidelity is missing: pip install 'sfumato\[inception\]', or use --set"
    ):
        chosen("inception")


class Trap:
    """An object that leaves a mark where it is read."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return open, (self.mark, "w")


def test_weights_that_would_run_code_are_refused_unread(hub, monkeypatch, tmp_path):
    torch.save(Trap(tmp_path / "mark"), tmp_path / "trap.pth")
    path = put(hub, (tmp_path / "trap.pth").read_bytes(), monkeypatch)
    with pytest.raises(BadInput, match=f"the weights at {path} cannot be read .*: delete them"):
        inception("cpu")
    assert not (tmp_path / "mark").exists()


def test_random_weights_go_through_the_real_network(tmp_path, monkeypatch, hub):
    """Shapes, channels, pixel range: torch-fidelity's own network, with weights drawn here."""
    network = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3", reason="torch-fidelity is missing")
    kind = network.FeatureExtractorInceptionV3
    torch.save({}, tmp_path / "none.pth")
    with monkeypatch.context() as patched, torch.random.fork_rng():
        torch.manual_seed(0)
        patched.setattr(kind, "load_state_dict", lambda *_: None)
        weights = kind("inception-v3-compat", ["2048"], str(tmp_path / "none.pth")).state_dict()
    torch.save(weights, tmp_path / "drawn.pth")
    put(hub, (tmp_path / "drawn.pth").read_bytes(), monkeypatch)
    extractor = inception("cpu")
    grey = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    read, probabilities = extractor.read(grey)
    assert read.shape == (3, extractor.width) == (3, 2048) and extractor.name == INCEPTION
    assert probabilities.shape == (3, 1008) and torch.allclose(probabilities.sum(1), torch.ones(3))
    assert torch.equal(read, extractor.read(grey.expand(-1, 3, -1, -1))[0]), "grey is three equal channels"
    assert not torch.allclose(read[0], read[1]) and not read.is_inference()
    pixels = ((grey + 1) / 2 * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
    reference = kind("inception-v3-compat", ["2048", "logits_unbiased"], str(extractors.weights_path()))
    expected, logits = reference(pixels)
    torch.testing.assert_close(read, expected)
    torch.testing.assert_close(probabilities, logits.softmax(1))


def test_two_extractors_are_never_in_one_table():
    letters = cnn_name("letters", 26)
    assert only_extractor([letters, letters]) == letters and only_extractor([]) == ""
    with pytest.raises(BadInput, match="two feature extractors in one table .*judge all sets with one"):
        only_extractor([letters, INCEPTION, letters])
