"""Models of diffusers behind our contracts: what they say is what diffusers says, and they are clipped exactly."""

import json

import pytest
import torch

from sfumato.config import Latent, Network
from sfumato.errors import BadInput
from sfumato.networks import diffusers_models
from sfumato.networks.build import build
from sfumato.networks.denoiser import Denoiser, class_rows, parameters_by_group, with_classes
from sfumato.networks.diffusers_folder import AUTOENCODERS, DENOISERS, model_folder
from sfumato.networks.low_rank import adapted, merged
from sfumato.pretrained import described_latent, plain
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from sfumato.privacy.engine.validation import survey
from tests import elsewhere
from tests.oracle import clipped, distance, loop, pictures

SHAPE = (1, 8, 8)
X, T = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(3)), torch.tensor([1, 5, 100, 1000, 7])
NOBODY = torch.full((5,), -1)


def loaded(folder, classes):
    read = model_folder(folder, "network.from", DENOISERS)
    settings = Network(config=plain(read))
    return diffusers_models.load_denoiser(settings, read.path, SHAPE, classes), settings


@pytest.fixture(params=["unet", "transformer"])
def pair(request, tmp_path):
    """The model as it was saved, and as we read it."""
    model = elsewhere.unet(num_class_embeds=4) if request.param == "unet" else elsewhere.dit()
    return model, *loaded(elsewhere.save(tmp_path, model, part=request.param), 4)


def test_it_says_what_diffusers_says_one_time_step_earlier_and_keeps_the_means_half(pair):
    theirs, ours, settings = pair
    y = torch.tensor([0, 1, 2, 3, 3])
    expected = theirs(X, T - 1, class_labels=y, return_dict=False)[0][:, :1]
    torch.testing.assert_close(ours(X, T, y), expected)
    again = build(settings, SHAPE, 4)
    again.load_state_dict(ours.state_dict())
    torch.testing.assert_close(again(X, T, y), expected)
    assert isinstance(ours, Denoiser)


def test_it_takes_rows_for_other_classes_and_has_the_groups_by_name(pair):
    _, ours, _ = pair
    rows = torch.randn(7, class_rows(ours).shape[1])
    with_classes(ours, rows)
    torch.testing.assert_close(class_rows(ours).detach(), rows)
    assert ours(X, T, torch.tensor([0, 6, 3, 2, 1])).shape == X.shape
    assert set(parameters_by_group(ours)) == {"rows", "film", "attention", "time", "rest"}


@pytest.mark.parametrize(("embeds", "same"), [(None, False), (9, True)])
def test_rows_of_other_classes_begin_at_zero_or_at_the_mean_of_its_own(tmp_path, embeds, same):
    model = elsewhere.unet(num_class_embeds=embeds)
    ours, _ = loaded(elsewhere.save(tmp_path, model), 3)
    expected = model.class_embedding.weight.mean(0) if same else torch.zeros(32)
    torch.testing.assert_close(class_rows(ours).detach(), expected.detach().expand(3, -1))


def test_rows_of_a_dit_of_other_classes_begin_at_its_row_of_no_class(tmp_path):
    model = elsewhere.dit(classes=6)
    ours, _ = loaded(elsewhere.save(tmp_path, model, part="transformer"), 3)
    expected = model(X, T - 1, class_labels=torch.full((5,), 6), return_dict=False)[0][:, :1]
    torch.testing.assert_close(ours(X, T, NOBODY), expected)


@pytest.mark.parametrize("groups", [("rows", "film"), ("rows", "film", "attention", "time", "rest")], ids=len)
def test_it_is_clipped_as_record_by_record(pair, groups):
    _, ours, _ = pair
    trainable = trainable_parameters(ours, groups)
    assert survey(ours, trainable, SHAPE).missing == ""
    examples = pictures(3, 2, SHAPE)
    total = clipped_sum(ours, trainable, examples, clip=0.5, chunk=2)
    assert distance(total, clipped(loop(ours, trainable, examples), 0.5)) < 1e-4


def test_adapters_stand_beside_its_linear_layers_and_merge(pair):
    _, ours, _ = pair
    expected = ours(X, T, NOBODY)
    adapted(ours, ("attention", "film"), 2)
    assert "frozen" in parameters_by_group(ours)
    torch.testing.assert_close(ours(X, T, NOBODY), expected)
    torch.testing.assert_close(merged(ours)(X, T, NOBODY), expected)


@pytest.mark.parametrize("kind", AUTOENCODERS)
def test_an_autoencoder_encodes_and_decodes_as_diffusers_does(tmp_path, kind):
    model = elsewhere.autoencoder(kind)
    latent = described_latent(Latent(from_=str(elsewhere.save(tmp_path, model, part=AUTOENCODERS[kind]))))
    ours = diffusers_models.load_autoencoder(latent, tmp_path / AUTOENCODERS[kind], SHAPE)
    encoded = model.encode(X)
    means = encoded.latent_dist.mean if kind == "AutoencoderKL" else encoded.latents
    torch.testing.assert_close(ours.posterior(X)[0], means)
    torch.testing.assert_close(ours.decoder(means), model.decode(means).sample)
    assert means.shape[1:] == (latent.channels, 4, 4)


@pytest.mark.parametrize(
    ("make", "shape", "words"),
    [
        (
            lambda: elsewhere.unet(3),
            SHAPE,
            "UNet2DModel of 3 channels in and 3 out, and what it is to denoise has 1 (8x8): bring",
        ),
        (
            lambda: elsewhere.unet(),
            (1, 7, 7),
            "halves its input 1 times, which 7x7 do not allow: in pixels use data.size=6",
        ),
        (
            lambda: elsewhere.dit(),
            (1, 16, 16),
            "DiTTransformer2DModel for 8x8 positions, and what it is to denoise has 16x16",
        ),
        (
            lambda: elsewhere.unet(class_embed_type="timestep"),
            SHAPE,
            "class_embed_type=timestep, for which there is no rule",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, shape, words):
    with pytest.raises(BadInput, match="network.from holds") as refusal:
        diffusers_models.refuse_misfit({**make().config, "_class_name": type(make()).__name__}, shape)
    assert words in str(refusal.value)


def test_weights_of_other_settings_are_refused(tmp_path):
    folder = elsewhere.save(tmp_path, elsewhere.unet())
    config = json.loads((folder / "unet" / "config.json").read_text())
    (folder / "unet" / "config.json").write_text(json.dumps(config | {"num_class_embeds": 4}))
    with pytest.raises(
        BadInput, match=r"the weights are not those of its config.json \(missing_keys: class_embedding.weight\)"
    ):
        loaded(folder, 4)


def test_weights_that_were_cut_short_are_refused(tmp_path):
    folder = elsewhere.save(tmp_path, elsewhere.unet())
    (weights,) = (folder / "unet").glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(BadInput, match="unet cannot be loaded by diffusers: ") as refusal:
        loaded(folder, 4)
    assert "\n" not in str(refusal.value)
