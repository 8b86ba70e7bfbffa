"""A released model as diffusers loads it draws, pixel by pixel, what it draws here; its code imports torch and diffusers alone."""

import ast
import json
import subprocess
import sys

import diffusers
import numpy as np
import pytest
import torch

from artifacts.for_diffusers.write import lacking, write_pipeline
from sfumato.alignment import ClassMaps, Moments, Reference
from sfumato.config import Latent
from sfumato.diffusion.schedule import make_schedule
from sfumato.formats import save_autoencoder, save_denoiser, save_maps
from sfumato.latents import scaled
from sfumato.methods.plan import Facts
from sfumato.networks.autoencoder import build_autoencoder
from sfumato.networks.build import build
from sfumato.pretrained import load_denoiser as load_elsewhere
from sfumato.pretrained import load_latents, with_pretrained
from sfumato.released import description, read_model
from sfumato.settings import resolve
from tests import elsewhere
from tests.examples import make_certificate

SHAPE, LATENT = (1, 8, 8), (2, 4, 4)
FACTS = Facts(records=100, classes=("cat", "dog", "eel"), public_classes=2, shape=SHAPE)
PUBLIC = torch.rand(30, *SHAPE, generator=torch.Generator().manual_seed(1)) * 2 - 1
SMALL = ("generation.steps=6", "schedule.timesteps=50")
STANDARD = {
    "argparse",
    "contextlib",
    "contextvars",
    "dataclasses",
    "functools",
    "itertools",
    "math",
    "operator",
    "types",
    "typing",
}


def awake(model):
    """With other weights than those that begin at zero."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def put(folder, settings, shape, *, model=None, codec=None, maps=None, method="tuned"):
    """A published folder without its images: `model/`, and the same for diffusers."""
    network, place = settings.network, folder / "model"
    levels = make_schedule(settings.schedule).alpha_bar
    there = {"public": build(network, shape, FACTS.public_classes, alpha_bar=levels)}
    if method == "tuned":
        there["tuned"] = model or awake(build(network, shape, len(FACTS.classes), alpha_bar=levels))
    else:
        there["public"] = awake(there["public"])
    for name, denoiser in there.items():
        (place / name).mkdir(parents=True)
        save_denoiser(place / name, denoiser, network, shape, len(denoiser.class_rows()))
    parts = list(there)
    if codec:
        (place / "autoencoder").mkdir()
        save_autoencoder(place / "autoencoder", codec, "digest")
        parts.append("autoencoder")
    if maps:
        (place / "moments").mkdir()
        nothing = Moments(torch.zeros(3), torch.zeros(3), torch.zeros(3), 1.0, 1.0, 1.0, 1.0)
        save_maps(place / "moments", nothing, maps, FACTS.classes)
        parts.append("moments")
    (place / "model.json").write_text(json.dumps(description(settings.what(), FACTS, parts)))
    model = read_model(place, make_certificate(), torch.device("cpu"))
    assert lacking(model.settings, parts) == ""
    write_pipeline(folder, model.settings, model.parts, {name: place / name for name in parts}, model.shares)
    return model


def same(folder, model, count=7, **chosen):
    """Whether diffusers draws what the model draws; how many different values its images have."""
    pixels, labels = model.draw(count, seed=3, **chosen)
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder, trust_remote_code=True)
    pipeline.set_progress_bar_config(disable=True)
    drawn = pipeline(count, seed=3, output_type="pt", **chosen)
    assert np.array_equal(drawn.labels.numpy(), labels) and list(drawn.classes) == list(FACTS.classes)
    assert np.array_equal(drawn.images.numpy(), pixels)
    pictures = pipeline(count, seed=3, **chosen).images
    assert np.array_equal(np.stack([np.asarray(one) for one in pictures]), pixels[:, 0])
    return len(np.unique(pixels))


@pytest.mark.parametrize("prediction", ["noise", "velocity", "sample", "edm"])
@pytest.mark.parametrize("kind", ["mlp", "unet", "refinenet", "dit"])
def test_our_own_networks_are_classes_of_diffusers(tmp_path, kind, prediction):
    network = ["network.width=16", "network.blocks=1", "network.condition=8", "network.attention=[4]"]
    settings = resolve("dp-sgd", "", [f"network.kind={kind}", f"network.prediction={prediction}", *network, *SMALL])
    assert same(tmp_path, put(tmp_path, settings, SHAPE)) > 20


@pytest.mark.parametrize(
    "changes",
    [
        ["generation.guidance=2"],
        ["generation.eta=1"],
        ["generation.solver=dpm++"],
        ["generation.solver=dpm++", "generation.eta=1"],
        ["generation.solver=ddpm", "generation.edition=2"],
        ["generation.solver=pndm", "schedule.kind=scaled_linear"],
        ["schedule.kind=cosine", "schedule.cosine_offset=0.02"],
        ["generation.classes=declared", "generation.shares={cat: 0.5, eel: 0.5, dog: 0}"],
    ],
    ids=" ".join,
)
def test_the_drawing_is_that_of_the_run(tmp_path, changes):
    settings = resolve("dp-sgd", "", ["network.kind=mlp", "network.width=16", *SMALL, *changes])
    assert same(tmp_path, put(tmp_path, settings, SHAPE)) > 20


def test_classes_are_chosen_by_name_or_position(tmp_path):
    model = put(tmp_path, resolve("dp-sgd", "", ["network.kind=mlp", "network.width=16", *SMALL]), SHAPE)
    for classes in (["eel"], ["dog", 0], "cat"):
        same(tmp_path, model, classes=classes)


@pytest.mark.parametrize("make", [elsewhere.unet, elsewhere.dit], ids=["unet", "dit"])
@pytest.mark.parametrize("guidance", [0, 1.5])
def test_what_came_from_diffusers_goes_back_as_the_class_that_it_was(tmp_path, make, guidance):
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=50, prediction_type="v_prediction")
    brought = elsewhere.save(tmp_path / "brought", make(), scheduler)
    because = ["privacy.public_because=made here", f"network.from={brought}", "generation.steps=6"]
    settings = with_pretrained(resolve("dp-sgd", "", [*because, f"generation.guidance={guidance}"]))
    tuned = awake(load_elsewhere(settings.network, settings.schedule, SHAPE, len(FACTS.classes), limit=1.0))
    model = put(tmp_path / "out", settings, SHAPE, model=tuned)
    assert same(tmp_path / "out", model, count=500) > 20, "also where a mean of rows is asked for"
    kind = type(make())
    alone = kind.from_pretrained(tmp_path / "out" / "denoiser")
    again = diffusers.DDIMScheduler.from_pretrained(tmp_path / "out" / "scheduler")
    assert isinstance(alone, kind) and again.config.prediction_type == "v_prediction"
    x, t, y = torch.randn(3, *SHAPE), torch.tensor([0, 10, 49]), torch.tensor([0, 1, 2])
    theirs = alone(x, t, class_labels=y, return_dict=False)[0][:, :1]
    torch.testing.assert_close(theirs, tuned.inner(x, t, class_labels=y, return_dict=False)[0][:, :1])


@pytest.mark.parametrize("kind", ["own", "patch", "linear", "AutoencoderKL", "AutoencoderTiny", "VQModel"])
def test_latents_are_decoded_by_the_autoencoder_that_is_there(tmp_path, kind):
    network = ["network.kind=mlp", "network.width=16", *SMALL]
    if kind in ("own", "patch", "linear"):
        patches = {"kind": "patch", "patch": 2, "multipliers": (1,), "linear": kind == "linear"}
        how = {"kind": "kl"} if kind == "own" else patches
        latent = Latent(channels=2, width=8, **how)
        codec = scaled(awake(build_autoencoder(latent, SHAPE)), latent, SHAPE, [PUBLIC])
        settings = resolve("dp-sgd", "", network)
    else:
        brought = elsewhere.save(tmp_path / "brought", elsewhere.autoencoder(kind), part="vae")
        settings = with_pretrained(
            resolve("dp-sgd", "", [*network, f"latent.from={brought}/vae", "privacy.public_because=made here"])
        )
        codec = load_latents(settings.latent, PUBLIC, own_scale=False)
    assert same(tmp_path / "out", put(tmp_path / "out", settings, LATENT, codec=codec)) > 20


@pytest.mark.parametrize("method", ["tuned", "public"])
@pytest.mark.parametrize("cells", [1, 3])
def test_aligned_classes_are_taken_back(tmp_path, method, cells):
    generator, numbers = torch.Generator().manual_seed(0), 64
    mean, *rest = (
        torch.randn(*shape, generator=generator).double() * 0.1
        for shape in ((numbers,), (3, cells, numbers), (3, numbers, numbers))
    )
    reference = Reference(
        mean, torch.eye(numbers).double(), torch.eye(numbers).double(), torch.zeros(1, numbers).double(), 1.0, 1.0
    )
    centres, turn = rest
    weights = torch.full((3, cells), 1 / cells).double()
    maps = ClassMaps(reference, centres, turn, torch.eye(numbers) + turn, weights, torch.ones(3))
    name = "dp-sgd" if method == "tuned" else "moments"
    settings = resolve(name, "", ["network.kind=mlp", "network.width=16", *SMALL])
    assert same(tmp_path, put(tmp_path, settings, SHAPE, maps=maps, method=method)) > 20


@pytest.mark.parametrize(
    ("method", "changes", "parts", "why"),
    [
        ("rapid", [], ["tuned"], "method.name=rapid does more to draw than one denoiser can"),
        ("dp-ensemble", [], ["prototypes"], "method.name=dp-ensemble does more"),
        ("dp-sgd", ["judge.use=weigh"], ["tuned"], "judge.use=weigh, and diffusers has no judge"),
        ("dp-sgd", ["generation.refine=0.1"], ["tuned"], "generation.refine=0.1 asks a second model"),
        ("dp-sgd", ["schedule.kind=edm"], ["tuned"], "schedule.kind=edm, which no scheduler"),
        ("dp-sgd", ["generation.solver=heun"], ["tuned"], "generation.solver=heun, which is not written"),
    ],
)
def test_what_one_denoiser_cannot_draw_has_no_pipeline(method, changes, parts, why):
    assert lacking(resolve(method, "", changes), parts).startswith(why)


def test_the_code_in_the_folder_imports_torch_and_diffusers_alone_and_runs_without_ours(tmp_path):
    settings = resolve("dp-sgd", "", ["network.kind=unet", "network.width=8", "network.blocks=1", *SMALL])
    latent = Latent(kind="kl", channels=2, width=8)
    put(tmp_path, settings, LATENT, codec=scaled(awake(build_autoencoder(latent, SHAPE)), latent, SHAPE, [PUBLIC]))
    files = sorted(tmp_path.rglob("*.py"))
    assert [path.relative_to(tmp_path).as_posix() for path in files] == [
        "denoiser/sfumato_denoiser.py", "pipeline.py", "vae/sfumato_autoencoder.py"
    ]  # fmt: skip
    for path in files:
        modules = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                modules |= {name.split(".")[0] for name in names}
        assert modules - STANDARD - {"__future__"} <= {"torch", "diffusers"}, path
    code = (
        "import sys, diffusers\n"
        "sys.modules['sfumato'] = sys.modules['artifacts'] = None\n"
        f"pipeline = diffusers.DiffusionPipeline.from_pretrained({str(tmp_path)!r}, trust_remote_code=True)\n"
        "print(pipeline(2, seed=0).images[0].size)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.strip() == "(8, 8)", done.stderr


def test_to_write_our_own_networks_takes_no_diffusers(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    put(tmp_path, resolve("dp-sgd", "", ["network.kind=mlp", "network.width=16", *SMALL]), SHAPE)
    assert (tmp_path / "pipeline.py").is_file()


def test_the_noise_of_the_scheduler_beside_it_is_the_runs(tmp_path):
    settings = resolve("dp-sgd", "", ["network.kind=mlp", "network.width=16", "schedule.kind=scaled_linear", *SMALL])
    put(tmp_path, settings, SHAPE)
    theirs = diffusers.DDIMScheduler.from_pretrained(tmp_path / "scheduler").alphas_cumprod
    torch.testing.assert_close(make_schedule(settings.schedule).alpha_bar[1:], theirs, rtol=0, atol=2e-6)
