"""Presets load, a person's changes are read as meant, and each mistake is one line with a name and a way out."""

import math

import pytest
import torch

from sfumato.config import FineTuning, Generation, Pretraining
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.named_settings import DEFAULT_METHOD, DEFAULT_PRESET, presets
from sfumato.networks.autoencoder import build_autoencoder, latent_shape
from sfumato.networks.build import build
from sfumato.networks.denoiser import parameters_by_group
from sfumato.section import Section
from sfumato.settings import Settings, release_of, resolve


def refusal(*changes, method=DEFAULT_METHOD):
    with pytest.raises(BadInput) as error:
        resolve(method, DEFAULT_PRESET, changes)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("preset", presets())
@pytest.mark.parametrize("method", METHODS)
def test_every_preset_loads_with_every_method(method, preset):
    settings = resolve(method, preset)
    assert settings.method.name == method
    assert presets()[preset]["why"] and presets()[preset]["expect"]
    assert set(presets()[preset].get("methods", {})) <= set(METHODS)


@pytest.mark.parametrize(
    ("preset", "channels", "side", "latent", "halvings"),
    [
        ("rapid-mnist", 1, 32, (3, 4, 4), 3),
        ("rapid-cifar10", 3, 32, (3, 16, 16), 1),
        ("rapid-celeba32", 3, 32, (3, 16, 16), 1),
        ("rapid-celeba64", 3, 64, (3, 32, 32), 1),
    ],
)
def test_the_papers_latent_presets_fit_together(preset, channels, side, latent, halvings):
    """Settings only: the data need a network or lie elsewhere. Jiang et al. 2025, Tables 6 and 7, section 4."""
    settings = resolve("rapid", preset)
    image = (channels, side, side)
    assert settings.data.size == side and latent_shape(settings.latent, image) == latent
    assert len(settings.latent.multipliers) == halvings + 1 and settings.latent.batch == 64
    assert (settings.method.k, settings.method.v, settings.generation.steps) == (0.8, 0.2, 100)
    assert (settings.fine_tuning.batch, settings.method.votes, settings.method.nearest) == (64, False, 1)
    with torch.device("meta"):  # shapes without numbers
        coder, denoiser = build_autoencoder(settings.latent, image), build(settings.network, latent, 10)
    assert coder.posterior(torch.zeros(1, *image, device="meta"))[0].shape == (1, *latent)
    assert set(settings.fine_tuning.trainable) < set(parameters_by_group(denoiser))
    sides = {latent[1] // 2**level for level in range(len(settings.network.multipliers))}
    assert set(settings.network.attention) <= sides


@pytest.mark.parametrize(
    ("preset", "heads", "depth", "class_input", "embedding"),
    [
        ("rapid-mnist", 2, 1, "cross_attention", 5),
        ("rapid-cifar10", 8, 2, "cross_attention", 512),
        ("rapid-celeba32", 8, 0, "sum", 0),
        ("rapid-celeba64", 8, 0, "sum", 0),
    ],
)
def test_attention_of_the_latent_presets_is_the_papers(preset, heads, depth, class_input, embedding):
    """Jiang et al. 2025, Table 7; without a spatial transformer nothing could attend to a class."""
    network = resolve("rapid", preset).network
    assert (network.attention_heads, network.transformer) == (heads, depth)
    assert (network.class_input, network.embedding) == (class_input, embedding)


@pytest.mark.parametrize(
    ("preset", "records", "public", "base"),
    [
        ("rapid-mnist", 60_000, 145_600, 21_840),
        ("rapid-cifar10", 50_000, 1_270_000, 70_000),
        ("rapid-celeba32", 162_770, 70_000, 10_000),
        ("rapid-celeba64", 162_770, 70_000, 10_000),
    ],
)
def test_rapids_presets_have_the_steps_and_the_base_of_the_size_of_their_sources(preset, records, public, base):
    """The paper states no steps; fifty epochs are ours, as many as dp-promise's. Table 5 has the sizes of the knowledge bases."""
    settings = resolve("rapid", preset)
    assert settings.fine_tuning.steps == math.ceil(50 * records / settings.fine_tuning.batch)
    assert settings.method.reference * public == pytest.approx(base, rel=1e-3)
    unlabelled = preset.startswith("rapid-celeba")
    assert settings.data.unlabelled == ("both" if unlabelled else "none"), (
        "section 4.2: CelebA is drawn without classes"
    )
    assert (settings.evaluation.classifiers == "fast") == unlabelled, "one class teaches no classifier"


@pytest.mark.parametrize(
    ("preset", "steps", "records"),
    [("dppm-mnist", 10_000, 60_000), ("dppm-celeba", 50_000, 96_430), ("dppm-celeba256", 50_000, 96_430)],
)
def test_dppms_presets_have_the_counts_that_the_paper_prints(preset, steps, records):
    """It calls its training steps epochs (Experimental Details): as such they would be millions of steps."""
    settings = resolve("dppm", preset)
    own, walk = settings.method, settings.generation.hamiltonian
    assert own.training.steps == steps and own.k == 10 and settings.generation.images == 10_000
    assert walk.steps == 100 and walk.iterations * walk.steps == 1_000, "a test after every 100 of 1,000"
    assert 10 < own.training.steps * own.training.batch / records < 100, "epochs, read as steps"


def test_a_preset_and_then_the_changes_override_the_defaults(monkeypatch):
    made = {
        "tiny": {
            "settings": {"generation": {"steps": 7, "images": 50}, "fine_tuning": {"clip": 0.5}},
            "methods": {DEFAULT_METHOD: {"fine_tuning": {"clip": 0.25, "steps": 9}}},
        }
    }
    monkeypatch.setattr("sfumato.settings.presets", lambda: made)
    settings = resolve(DEFAULT_METHOD, "tiny", ["generation.images=20", "fine_tuning.steps=3", "fine_tuning.steps=4"])
    assert (settings.generation.steps, settings.generation.images) == (7, 20)
    assert (settings.fine_tuning.clip, settings.fine_tuning.steps) == (0.25, 4)
    assert settings.generation.eta == Generation().eta
    other = next(name for name in METHODS if name != DEFAULT_METHOD)
    assert resolve(other, "tiny").fine_tuning.clip == 0.5
    assert made["tiny"]["settings"]["fine_tuning"] == {"clip": 0.5}, "resolving leaves the preset as it was"


def test_some_settings_hold_for_small_budgets_alone_and_a_person_overrides_them(monkeypatch):
    small = {2: {"fine_tuning": {"steps": 50, "clip": 0.5}}, 0.5: {"fine_tuning": {"steps": 20}}}
    monkeypatch.setattr("sfumato.settings.presets", lambda: {"tiny": {"below_epsilon": small}})

    def tuning(*changes):
        settings = resolve(DEFAULT_METHOD, "tiny", changes)
        return settings.fine_tuning.steps, settings.fine_tuning.clip

    usual = (FineTuning().steps, FineTuning().clip)
    assert tuning() == tuning("privacy.epsilon=2") == usual
    assert tuning("privacy.epsilon=1") == (50, 0.5) and tuning("privacy.epsilon=0.1") == (20, 0.5)
    assert tuning("fine_tuning.steps=9", "privacy.epsilon=0.1") == (9, 0.5)


def test_a_method_may_have_small_budgets_of_its_own(monkeypatch):
    own = {"fine_tuning": {"draws": 2}, "below_epsilon": {1: {"fine_tuning": {"steps": 7}}}}
    made = {"below_epsilon": {3: {"fine_tuning": {"steps": 50}}}, "methods": {DEFAULT_METHOD: own}}
    monkeypatch.setattr("sfumato.settings.presets", lambda: {"tiny": made})
    other = next(name for name in METHODS if name != DEFAULT_METHOD)

    def steps(method, epsilon):
        return resolve(method, "tiny", [f"privacy.epsilon={epsilon}"]).fine_tuning.steps

    usual = FineTuning().steps
    assert [steps(DEFAULT_METHOD, e) for e in (0.5, 2, 4)] == [7, usual, usual]
    assert [steps(other, e) for e in (0.5, 2, 4)] == [50, 50, usual]
    assert resolve(DEFAULT_METHOD, "tiny").fine_tuning.draws == 2 and "below_epsilon" in own


@pytest.mark.parametrize(
    ("change", "read", "value"),
    [
        ("pretraining.learning_rate=1e-5", lambda s: s.pretraining.learning_rate, 1e-5),
        ("privacy.delta=2E-06", lambda s: s.privacy.delta, 2e-6),
        ("generation.images=1e3", lambda s: s.generation.images, 1000),
        ("fine_tuning.trainable=[rows, rest]", lambda s: s.fine_tuning.trainable, ("rows", "rest")),
        ("network.multipliers=[1,2,4]", lambda s: s.network.multipliers, (1, 2, 4)),
        ("network.attention=[]", lambda s: s.network.attention, ()),
        ("data.name=", lambda s: s.data.name, ""),
        ("data.private=/data/a=b c", lambda s: s.data.private, "/data/a=b c"),
        ("evaluation.baseline=false", lambda s: s.evaluation.baseline, False),
        ("seed=3", lambda s: s.seed, 3),
        (" generation.eta =0.5", lambda s: s.generation.eta, 0.5),
        ("generation={steps: 5}", lambda s: (s.generation.steps, s.generation.images), (5, Generation().images)),
    ],
)
def test_a_change_is_read_as_a_person_means_it(change, read, value):
    assert read(resolve(DEFAULT_METHOD, changes=[change])) == value


@pytest.mark.parametrize("change", ["generation.images", "=3", " =3", ""])
def test_a_change_without_a_name_or_a_value_is_refused(change):
    assert f"--set {change!r}" in refusal(change) and "section.field=value" in refusal(change)


@pytest.mark.parametrize(
    ("change", "setting", "value"),
    [
        ("privacy.epsilon=-1", "privacy.epsilon", "-1"),
        ("privacy.epsilon=0", "privacy.epsilon", "0"),
        ("privacy.epsilon=lots", "privacy.epsilon", '"lots"'),
        ("privacy.delta=1", "privacy.delta", "1"),
        ("privacy.delta_exponent=-1", "privacy.delta_exponent", "-1"),
        ("privacy.relation=swap", "privacy.relation", '"swap"'),
        ("data.held_out=1", "data.held_out", "1"),
        ("data.share=0", "data.share", "0"),
        ("data.share=1.5", "data.share", "1.5"),
        ("data.channels=2", "data.channels", "2"),
        ("fine_tuning.sample_rate=1.5", "fine_tuning.sample_rate", "1.5"),
        ("fine_tuning.sample_rate=0", "fine_tuning.sample_rate", "0"),
        ("fine_tuning.clip=0", "fine_tuning.clip", "0"),
        ("fine_tuning.draws=0", "fine_tuning.draws", "0"),
        ("fine_tuning.steps=0", "fine_tuning.steps", "0"),
        ("fine_tuning.trainable=[row]", "fine_tuning.trainable.0", '"row"'),
        ("fine_tuning.trainable=[]", "fine_tuning.trainable", "[]"),
        ("generation.images=0", "generation.images", "0"),
        ("generation.images=2.5", "generation.images", "2.5"),
        ("generation.eta=2", "generation.eta", "2"),
        ("network.multipliers=[]", "network.multipliers", "[]"),
        ("network.multipliers=[1, 0]", "network.multipliers.1", "0"),
        ("network.condition=7", "network.condition", "7"),
        ("schedule.timesteps=1", "schedule.timesteps", "1"),
        ("schedule.kind=square", "schedule.kind", '"square"'),
        ("machine.physical_batch=0", "machine.physical_batch", "0"),
        ("seed=-1", "seed", "-1"),
        ("privacy=3", "privacy", "3"),
    ],
)
def test_each_bad_value_gives_one_line_with_its_setting_and_value(change, setting, value):
    assert refusal(change).startswith(f"setting {setting!r} has value {value}: ")


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        ("privcy=1", "privacy"),
        ("privacy.epsilonn=1", "privacy.epsilon"),
        ("generation.image=1", "generation.images"),
        ("method.nearst=3", "method.nearest"),
        ("method.extractor.stps=3", "method.extractor.steps"),
        ("sed=1", "seed"),
    ],
)
def test_an_unknown_setting_is_answered_with_the_nearest_one(change, meant):
    message = refusal(change, method="rapid")
    assert message.startswith(f"unknown setting {change.split('=')[0]!r}") and f"did you mean {meant!r}?" in message


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ("privacy.zzz=1", "epsilon, delta"),
        ("privacy.=1", "epsilon, delta"),
        ("zzz=1", "data, privacy"),
        ("method.zzz=1", "name, k, v"),
        ("method.extractor.zzz=1", "steps, batch"),
        ("rapid.k=0.5", "data, privacy"),  # the method's own name is no section
        ("method.rapid=1", "name, k, v"),
        ("generation.dp-sgd=3", "images, classes, shares"),
    ],
)
def test_an_unknown_setting_far_from_all_is_answered_with_what_there_is(change, known):
    message, path = refusal(change, method="rapid"), change.partition("=")[0].replace("rapid.k", "rapid")
    assert message.startswith(f"unknown setting {path!r}")
    assert f"known here: {known}" in message


def test_one_methods_setting_is_unknown_to_another():
    assert "unknown setting 'method.nearest'" in refusal("method.nearest=2", method="dp-sgd")


@pytest.mark.parametrize(("method", "near"), [("rapit", "rapid"), ("dpsgd", "dp-sgd"), ("RAPID", None), ("", None)])
def test_an_unknown_method_is_answered_with_the_nearest_name(method, near):
    with pytest.raises(BadInput, match=f"unknown method '{method}'") as error:
        resolve(method)
    assert (f"did you mean {near!r}?" if near else "choose one") in str(error.value)
    assert all(name in str(error.value) for name in METHODS)


def test_an_unknown_preset_is_answered_with_the_nearest_name():
    with pytest.raises(BadInput, match=r"unknown preset 'digit': did you mean 'digits'\?"):
        resolve(DEFAULT_METHOD, "digit")


def test_what_holds_everything_but_the_machine():
    settings = resolve(DEFAULT_METHOD, changes=["seed=5"])
    faster = resolve(DEFAULT_METHOD, changes=["seed=5", "machine.physical_batch=7", "machine.device=cpu"])
    assert settings.what() == faster.what() and "machine" not in settings.what()
    assert set(settings.what()) == set(Settings.model_fields) - {"machine"}
    assert settings.what() != resolve(DEFAULT_METHOD, changes=["seed=6"]).what()
    again = Settings.model_validate({**settings.what(), "machine": settings.machine})
    assert again == settings, "what is written down can be read again"


def test_only_keeps_the_named_sections_and_the_machine():
    changes = ["generation.steps=5", "fine_tuning.clip=3", "privacy.epsilon=2", "machine.physical_batch=7", "seed=9"]
    settings = resolve("dp-sgd", changes=changes)
    retained = settings.only("generation", "method")
    assert (retained.generation.steps, retained.method.name, retained.machine.physical_batch) == (5, "dp-sgd", 7)
    assert (retained.fine_tuning, retained.seed, retained.privacy.epsilon) == (
        FineTuning(),
        0,
        Settings().privacy.epsilon,
    )
    other = settings.model_copy(
        update={"fine_tuning": FineTuning(clip=9), "seed": 1, "pretraining": Pretraining(steps=3)}
    )
    assert other.only("generation", "method") == retained, "the key of a stage does not see what the stage does not use"


def test_settings_are_frozen_at_every_depth():
    settings = resolve(DEFAULT_METHOD)
    for section, field in ((settings, "seed"), (settings.privacy, "epsilon"), (settings.method, "name")):
        with pytest.raises(ValueError, match="frozen"):
            setattr(section, field, getattr(section, field))


def test_every_setting_says_what_it_is():
    def check(section, path):
        for name, field in section.model_fields.items():
            inner = field.annotation
            if hasattr(inner, "model_fields"):
                check(inner, f"{path}.{name}")
            elif not (section is Settings and name in ("method",)):
                assert field.description, f"{path}.{name}"

    check(Settings, "settings")
    for name, method in METHODS.items():
        check(method.section, name)


def test_a_path_in_the_users_folder_is_found_though_no_shell_has_seen_it(monkeypatch):
    monkeypatch.setenv("HOME", "/users/me")
    data = resolve(
        "rapid", changes=["data.private=~/scans", "data.public=~/textures+glyphs", "data.folder=~/sets"]
    ).data
    assert (data.private, data.public, data.folder) == (
        "/users/me/scans",
        "/users/me/textures+glyphs",
        "/users/me/sets",
    )


def test_a_list_without_brackets_is_answered_by_how_one_is_written():
    with pytest.raises(BadInput, match=r"trainable' has value \"rows,film\".*write a list as fine_tuning.trainable=\["):
        resolve("rapid", changes=["fine_tuning.trainable=rows,film"])
    with pytest.raises(BadInput, match=r"write names with their values as generation.shares={name: value}$"):
        resolve("rapid", changes=["generation.shares=[1]"])


@pytest.mark.parametrize("change", ["privacy=1", "privacy=[3]", "data=x", "method=x"])
def test_a_section_in_the_place_of_a_setting_is_called_one(change):
    name = change.partition("=")[0]
    with pytest.raises(
        BadInput,
        match=rf"^setting '{name}' has value .*: it is a section; set one of its settings, as {name}.NAME=VALUE$",
    ):
        resolve("rapid", changes=[change])


@pytest.mark.parametrize(
    ("public", "licence"),
    [
        ("glyphs", "Apache-2.0"),
        ("glyphs+digits", "Apache-2.0 AND CC-BY-4.0"),
        ("textures/", ""),
        ("omniglot+glyphs", ""),
    ],
)
def test_the_licence_of_built_in_public_images_is_known(public, licence):
    assert release_of({"data": {"public": public}}).public_licence == licence
    named = {"data": {"public": public}, "release": {"public_licence": "MIT"}}
    assert release_of(named).public_licence == "MIT"


def sections(section):
    """All sections in one, itself first."""
    yield section
    for _, value in section:
        if isinstance(value, Section):
            yield from sections(value)


@pytest.mark.parametrize("method", METHODS)
def test_to_set_one_field_leaves_the_others_as_they_were(method):
    """A section whose default has other values than its class would change them all, unseen, where a person sets one."""
    for section in sections(Settings(method=METHODS[method].section())):
        for name, field in type(section).model_fields.items():
            if isinstance(field.default, Section):
                assert field.default == type(field.default)(), name
    if "training" in METHODS[method].section.model_fields:
        slower = resolve(method, "auto", ["method.training.learning_rate=0.0007"]).method.training
        assert slower == METHODS[method].section().training.model_copy(update={"learning_rate": 0.0007})
