"""What can be known before work starts is refused before work starts, in one line that names the way out."""

import builtins
import io
import shlex
import shutil

import numpy as np
import pytest
from PIL import Image

from sfumato import preflight as module
from sfumato.config import Network, Privacy
from sfumato.errors import BadInput
from sfumato.evaluation import extractors
from sfumato.preflight import LARGE_DELTA, left_out, one_extractor, plan_for, preflight, private_set
from sfumato.settings import resolve
from tests.sfumato.sources.writing import write_mnist_like

RECORDS = 1437


def folder(root, classes="ab", each=10, side=8, mode="L"):
    for at, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(each):
            Image.new(mode, (side, side), (10 * at + i,) * len(mode)).save(root / name / f"{i}.png")
    return root


def settle(*changes, method="dp-sgd"):
    return preflight(resolve(method, changes=list(changes)))


def refusal(*changes, method="rapid"):
    with pytest.raises(BadInput) as error:
        settings, facts, _ = settle(*changes, method=method)
        plan_for(settings, facts)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_default_is_filled_in_and_nothing_is_decoded(monkeypatch):
    monkeypatch.setattr("sfumato.sources.load", lambda *_, **__: pytest.fail("an image was decoded"))
    settings, facts, warnings = settle()
    assert warnings == []
    assert (facts.records, facts.shape, facts.classes) == (RECORDS, (1, 8, 8), tuple("0123456789"))
    assert settings.privacy.delta == pytest.approx(RECORDS**-1.1) and settings.privacy.delta < 1 / RECORDS
    assert (settings.data.name, settings.data.private) == ("digits", "digits")
    assert settle(*["privacy.delta_exponent=-2"])[0].privacy.delta == pytest.approx(RECORDS**-2)


@pytest.mark.parametrize("side", ["private", "public"])
def test_a_side_without_a_name_is_named(side):
    assert f"data.{side} names no images" in refusal(f"data.{side}=")


def test_settling_twice_changes_nothing_more(tmp_path):
    private = f"data.private={folder(tmp_path / 'a')}"
    settled = settle(private, "data.public=glyphs", "fine_tuning.batch=4", "data.held_out=0.5")
    assert preflight(settled[0]) == settled


@pytest.mark.parametrize("delta", [1 / RECORDS, 0.01, 0.9])
def test_a_delta_that_allows_a_whole_record_out_is_warned_of(delta):
    settings, facts, warnings = settle(f"privacy.delta={delta}")
    assert f"privacy.delta={delta:.4g}" in warnings[0] and "1/records" in warnings[0]
    assert [f"above {LARGE_DELTA:g}" in stated for stated in warnings[1:]] == [True] * (delta > LARGE_DELTA)
    assert plan_for(settings, facts).warnings == tuple(warnings), "what the screen says, report and card say too"
    assert settle(f"privacy.delta={1 / RECORDS * 0.99}")[2] == []


def test_auto_takes_the_delta_of_the_budget_where_one_binds():
    agreed = {"digits": 1e-6}.get
    assert preflight(resolve("dp-sgd"), agreed=agreed)[0].privacy.delta == 1e-6
    assert preflight(resolve("dp-sgd", changes=["privacy.delta=1e-5"]), agreed=agreed)[0].privacy.delta == 1e-5
    assert preflight(resolve("dp-sgd", changes=["data.name=other"]), agreed=agreed)[0].privacy.delta > 1e-5


def test_the_delta_of_a_few_records_is_below_one_over_them_and_still_warned_of(tmp_path):
    """A class of a few pictures had a delta of .1 and more without a word."""
    few = ["data.held_out=0.1", "fine_tuning.batch=2", f"data.private={folder(tmp_path / 'few', each=4)}"]
    settings, facts, warnings = settle(*few, "data.public=glyphs")
    assert 0.1 < settings.privacy.delta < 1 / facts.records
    assert len(warnings) == 2 and f"above {LARGE_DELTA:g}" in warnings[0]


def test_few_records_in_a_class_are_warned_of_but_where_there_is_one_class_or_no_noise(tmp_path):
    few, enough = (f"data.private={folder(tmp_path / name, each=each)}" for name, each in (("few", 40), ("enough", 80)))
    (warning,) = [stated for stated in settle(few, "privacy.epsilon=3")[2] if "in a class are few" in stated]
    assert "private records in a class are few: at epsilon 3" in warning and "2 classes apart" in warning
    quiet = [[enough], [few, "data.unlabelled=private"], [few, "privacy.epsilon=inf", "privacy.reason=to see"]]
    assert not [stated for changes in quiet for stated in settle(*changes)[2] if "in a class are few" in stated]


def test_a_table_that_names_patients_whom_nothing_groups_is_warned_of(tmp_path):
    folder(tmp_path / "scans", each=10)
    names = sorted(path.relative_to(tmp_path / "scans") for path in (tmp_path / "scans").rglob("*.png"))
    rows = [f"{name},{name.parent},p{at // 2}" for at, name in enumerate(names)]
    (tmp_path / "scans" / "list.csv").write_text("\n".join(["path,label,patient_id", *rows]))
    private = f"data.private={tmp_path / 'scans' / 'list.csv'}"
    (warning,) = [line for line in settle(private).warnings if "patient_id" in line]
    assert "each image stands for itself: --set data.group=patient_id protects a patient" in warning
    for group in ("patient_id", "none"):
        assert not [line for line in settle(private, f"data.group={group}").warnings if "stands for itself" in line]


@pytest.mark.parametrize("given", ["0", "0.0", "1", "-1e-5", "nan", "true", "null", "none", "[1e-5]"])
def test_a_delta_is_a_number_or_auto(given):
    message = refusal(f"privacy.delta={given}")
    assert "'privacy.delta'" in message and "auto" in message and "above 0 and below 1" in message


def test_auto_is_the_default_and_worked_out_before_anything_is_hashed():
    assert Privacy().delta == "auto" and Privacy(delta=1e-5).delta == 1e-5
    assert settle("privacy.delta=auto")[0] == settle()[0] == settle(f"privacy.delta={RECORDS**-1.1!r}")[0]


def test_a_large_epsilon_is_warned_of_and_a_very_large_one_needs_a_reason():
    assert settle("privacy.epsilon=20")[2] == []
    warnings = settle("privacy.epsilon=50")[2]
    assert len(warnings) == 1 and "privacy.epsilon=50 is above 20" in warnings[0]
    for reason in ([], ["privacy.reason="], ["privacy.reason=' '"]):
        message = refusal("privacy.epsilon=51", *reason)
        assert "privacy.epsilon=51 is above 50" in message and "privacy.reason" in message
    settings, facts, warnings = settle("privacy.epsilon=51", "privacy.reason=nobody sees it but us")
    assert "nobody sees it but us" in warnings[0] and plan_for(settings, facts).privacy == settings.privacy


def test_no_decay_of_the_moving_averages_is_named_twice():
    for averages in ("[0.5,0.5]", "[0.97]"):
        message = refusal(f"fine_tuning.averages={averages}", "fine_tuning.ema_decay=0.97")
        assert "names a decay twice" in message and "\n" not in message


def test_a_batch_becomes_a_sample_rate_and_cannot_exceed_the_records():
    settings, _, _ = settle("fine_tuning.batch=100", "data.share=0.2784")
    assert (settings.fine_tuning.sample_rate, settings.fine_tuning.batch) == (0.25, 0)
    assert settle("fine_tuning.batch=400", "data.share=0.2784")[0].fine_tuning.sample_rate == 1.0
    message = refusal("fine_tuning.batch=401", "data.share=0.2784")
    assert "fine_tuning.batch=401" in message and "only 400" in message and "--set fine_tuning.batch=200" in message


def test_a_number_of_records_is_refused_with_the_share_that_gives_about_as_many():
    """The first N let a record pull another one in when it goes; a hash of each record alone does not."""
    assert settle("data.share=0.0418")[1].records == 60 and settle()[1].records == RECORDS
    reported = refusal("data.limit=60")
    assert "data.limit=60 takes the first records" in reported and "--set data.share=0.0418" in reported
    assert "--set data.share=1," in refusal("data.limit=999999")
    assert "--set data.share=0.0418" in refusal("data.limit=60", "data.share=0.5"), "whatever share stood there"


@pytest.mark.parametrize(("k", "v"), [(0.4, 0.4), (0.3, 0.5)])
def test_resuming_must_come_after_the_query(k, v):
    message = refusal(f"method.k={k}", f"method.v={v}")
    assert f"method.v={v}" in message and f"method.k={k}" in message and "v < k" in message


@pytest.mark.parametrize(("k", "v", "timesteps"), [(0.5, 0.45, 5), (0.2004, 0.2001, 1000)])
def test_two_shares_that_round_to_one_time_are_refused_too(k, v, timesteps):
    message = refusal(f"method.k={k}", f"method.v={v}", f"schedule.timesteps={timesteps}")
    assert f"method.v={v}" in message and f"method.k={k}" in message and str(timesteps) in message


@pytest.mark.parametrize(("change", "setting"), [("method.k=1.2", "method.k"), ("method.v=0", "method.v")])
def test_shares_of_the_way_lie_between_0_and_1(change, setting):
    assert refusal(change).startswith(f"setting {setting!r} has value")


def test_private_and_public_must_not_be_one_place(tmp_path, monkeypatch):
    inside = folder(tmp_path / "outer" / "inner")
    (tmp_path / "link").symlink_to(tmp_path / "outer")
    monkeypatch.chdir(tmp_path)
    pairs = [
        (inside, inside),
        (inside, tmp_path / "outer"),
        (tmp_path / "outer", inside),
        (inside, tmp_path / "link" / "inner"),
        (inside, "outer/inner"),
        ("digits", "digits"),
    ]
    for private, public in pairs:
        message = refusal(f"data.private={private}", f"data.public={public}")
        assert f"data.public='{public}'" in message and f"'{private}'" in message


def test_no_pixel_of_a_private_file_is_read(tmp_path, monkeypatch):
    """Bytes asked of the images' file: its header and no more, also where the public file is its copy."""
    for name in ("scans", "open"):
        write_mnist_like(tmp_path / name, end="")
    taken = []

    class Counted(io.FileIO):
        def read(self, size=-1):
            taken.append(super().read(size))
            return taken[-1]

        def readinto(self, buffer):
            taken.append(self.read(len(buffer)))
            buffer[: len(taken[-1])] = taken[-1]
            return len(taken[-1])

    def opened(file, *args, real=builtins.open, **others):
        images = str(file).startswith(str(tmp_path / "scans")) and "images" in str(file)
        return Counted(file) if images else real(file, *args, **others)

    monkeypatch.setattr(builtins, "open", opened)
    settle(f"data.private={tmp_path / 'scans'}", f"data.public={tmp_path / 'open'}")
    assert taken and {len(piece) for piece in taken} == {16}


@pytest.mark.parametrize("kind", ["folder", "idx", "npz"])
def test_copies_are_for_the_door_to_find(tmp_path, kind):
    """To know them here, pixels would have to be read before the ledger has an entry."""
    if kind == "npz":
        np.savez(tmp_path / "a.npz", images=np.arange(640, dtype=np.uint8).reshape(10, 8, 8), labels=np.arange(10) % 2)
    one = {"folder": tmp_path / "a", "idx": tmp_path / "a", "npz": tmp_path / "a.npz"}[kind]
    if kind != "npz":
        {"folder": folder, "idx": write_mnist_like}[kind](one)
    other = tmp_path / one.name.replace("a", "b")
    (shutil.copyfile if kind == "npz" else shutil.copytree)(one, other)
    assert settle(f"data.private={one}", f"data.public={other}")[1].records > 5


@pytest.mark.parametrize(("side", "mode"), [(10, "L"), (8, "RGB"), (20, "RGB")])
def test_public_images_are_brought_to_the_private_ones_by_themselves(tmp_path, side, mode):
    public = folder(tmp_path / "p", side=side, mode=mode)
    _, facts, warnings = settle(f"data.public={public}")
    assert facts.shape == (1, 8, 8) and not warnings
    private = folder(tmp_path / "colour", side=8, mode="RGB")
    assert settle(f"data.private={private}", "data.public=glyphs")[1].shape == (3, 8, 8)


def test_grey_public_images_beside_private_ones_in_colour_are_warned_of(tmp_path):
    private = f"data.private={folder(tmp_path / 'colour', side=16, mode='RGB')}"
    grey, colour = (folder(tmp_path / mode, side=16, mode=mode) for mode in ("L", "P"))
    for public in ("glyphs", grey, f"glyphs+{grey}"):
        warning = settle(private, f"data.public={public}")[2][-1]
        assert "are grey and the private ones in colour" in warning and "data.public=shapes" in warning
    for public in ("shapes", colour, f"{grey}+shapes"):
        assert not [stated for stated in settle(private, f"data.public={public}")[2] if "grey" in stated]
    assert not [stated for stated in settle(private, "data.channels=1")[2] if "in colour" in stated]


def test_public_images_that_are_much_smaller_are_warned_of_or_refused(tmp_path):
    private, public = (
        f"data.private={folder(tmp_path / 'a', side=20)}",
        f"data.public={folder(tmp_path / 'p', side=12)}",
    )
    warning = settle(private, public)[2][-1]
    assert "of 12 pixels are enlarged 1.7 times to 20" in warning and "data.size=12" in warning
    message = refusal(private, public, "data.size=30")
    assert "of 12 pixels would be enlarged 2.5 times to the 30" in message and message.endswith("--set data.size=24")
    assert settle(private, public, "data.size=24")[1].shape == (1, 24, 24)
    assert not [stated for stated in settle(private, f"{public}+glyphs", "data.size=12")[2] if "enlarged" in stated]
    assert "enlarged 2.5 times" in refusal(private, f"{public}+glyphs", "data.size=30")


def test_private_images_that_are_not_square_name_a_way_out(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.arange(1280, dtype=np.uint8).reshape(10, 8, 16), labels=np.arange(10) % 2)
    message = refusal(f"data.private={tmp_path / 'a.npz'}")
    assert "8 pixels high and 16 wide" in message and "--set data.size=8" in message
    assert "glyphs" not in message, "nobody named them"
    assert "public ones ('glyphs')" in refusal(f"data.private={tmp_path / 'a.npz'}", "data.public=glyphs")
    assert settle(f"data.private={tmp_path / 'a.npz'}", "data.size=8")[1].shape == (1, 8, 8)


def test_one_source_is_on_both_sides_by_classes_that_differ(tmp_path):
    one = folder(tmp_path / "one", "abcdef", each=20)
    sides = [f"data.private={one}", f"data.public={one}"]
    assert refusal(*sides).endswith("data.private_classes=[...] and data.public_without=[...]")
    assert "must not come from the private collection" in refusal(*sides, "data.public_without=[a,b]")
    unsaid = refusal(*sides, "data.private_classes=[a,b]", "data.public_classes=")
    assert unsaid.endswith("""leave all private classes out with --set 'data.public_without=["a", "b"]'""")
    assert (
        settle(*sides, "data.private_classes=[a,b]", shlex.split(unsaid.split("--set ")[1])[0])[1].public_classes == 4
    )
    for public in ("data.public_without=[a,b]", "data.public_without=[0,1]", "data.public_classes=[c,d,5,e]"):
        settings, facts, _ = settle(*sides, "data.private_classes=[0,b]", public)
        assert facts.classes == ("a", "b") == settings.data.private_classes and facts.public_classes == 4
        assert facts.whole.records == 40 and private_set(settings).only == ("a", "b")
        assert preflight(settings)[0] == settings
    assert "the class 'b' of" in refusal(*sides, "data.private_classes=[a,b]", "data.public_without=a")
    assert "the class 'b' of" in refusal(*sides, "data.private_classes=[a,b]", "data.public_classes=[c,b]")
    both = refusal(*sides, "data.private_classes=[a,b]", "data.public_classes=c", "data.public_without=a")
    assert both.endswith("use one of the two")
    assert "has no class 'x', which data.private_classes names" in refusal(*sides, "data.private_classes=x")
    within = refusal(sides[0], f"data.public={one / 'c'}", "data.private_classes=[a,b]", "data.public_without=a")
    assert "data.public_without names 'a', which is no class of" in within


def test_one_source_with_groups_is_not_on_both_sides(tmp_path):
    one = folder(tmp_path / "one", "abcd", each=20)
    for path in list(one.rglob("*.png")):
        path.rename(path.parent / f"p{path.stem}_{path.name}")
    requested = [f"data.private={one}", f"data.public={one}", "data.private_classes=[a,b]", "data.public_without=[a,b]"]
    assert "a person may have images in private classes and in public ones" in refusal(*requested, "data.group=prefix")
    assert settle(*requested)[1].records == 32


def test_another_choice_of_classes_does_not_take_the_constants_of_the_first(tmp_path):
    one = folder(tmp_path / "one", "abcdef", each=20)
    first = settle(f"data.private={one}", "data.private_classes=[a,b]")[1].whole
    for classes, records in (("[a,b]", 40), ("[b,c,d]", 60)):
        requested = resolve("dp-sgd", changes=[f"data.private={one}", f"data.private_classes={classes}"])
        assert preflight(requested, known=lambda name: first)[1].whole.records == records


def test_glyphs_take_the_side_of_the_private_images(tmp_path):
    facts = settle(f"data.private={folder(tmp_path / 'a', side=20)}", "data.public=glyphs")[1]
    assert facts.shape == (1, 20, 20)


def named_data(root):
    """A data folder with a tiny `mnist` and `fashion-mnist`."""
    for at, name in enumerate(("mnist", "fashion-mnist")):
        write_mnist_like(root / name, seed=at)
    return root


def test_data_sets_by_name_are_looked_for_where_the_settings_or_the_caller_say(tmp_path):
    root, elsewhere = named_data(tmp_path / "data"), tmp_path / "elsewhere"
    requested = resolve("dp-sgd", changes=["data.private=mnist", "data.public=fashion-mnist", "data.size=8"])
    settings, facts, _ = preflight(requested, str(root))
    assert (settings.data.private, settings.data.name, settings.data.folder) == ("mnist", "mnist", str(root))
    assert (facts.records, facts.shape, facts.public_classes) == (30, (1, 8, 8), 10)
    assert preflight(settings, str(elsewhere))[:2] == (settings, facts)
    secret = private_set(settings)
    assert (secret.source, secret.folder, secret.invert) == ("mnist", str(root), False)
    assert settle(f"data.folder={root}")[0].data.folder == ""  # nothing there is looked for by name


def test_a_mixture_with_glyphs_takes_the_height_of_the_private_images(tmp_path):
    root = named_data(tmp_path / "data")
    scans = folder(tmp_path / "scans", side=12)
    settings, facts, _ = settle(f"data.private={scans}", "data.public=mnist+glyphs", f"data.folder={root}")
    assert facts.shape == (1, 12, 12) and facts.public_classes == 10 + 52
    assert settings.data.public == "mnist+glyphs"
    assert settle(f"data.private={scans}", "data.glyphs=both")[1].public_classes == 62
    assert settle(f"data.private={scans}", "data.glyphs=digits", "data.invert=both")[1].public_classes == 10
    message = refusal("data.private=mnist", "data.public=mnist+glyphs", f"data.folder={root}")
    assert "data.public='mnist+glyphs'" in message


def test_which_sides_are_inverted(tmp_path):
    for invert, expected in (("none", False), ("public", False), ("private", True), ("both", True)):
        assert private_set(settle(f"data.invert={invert}", "data.crop=centre")[0]).invert is expected


def test_one_class_is_enough_and_leaves_nothing_to_guide_towards(tmp_path):
    settings, facts, warnings = settle(
        f"data.private={folder(tmp_path / 'only', classes='a')}", "generation.guidance=2"
    )
    assert facts.classes == ("a",) and settings.generation.guidance == 0
    assert not any("have no labels" in warning for warning in warnings)


def test_a_source_that_is_not_there_is_named(tmp_path):
    assert str(tmp_path / "gone") in refusal(f"data.private={tmp_path / 'gone'}")
    assert str(tmp_path / "gone") in refusal(f"data.public={tmp_path / 'gone'}")


def test_too_few_records_to_promise_anything_are_refused(tmp_path):
    few = folder(tmp_path / "few", each=1)
    message = refusal(f"data.private={few}", "data.held_out=0.9")  # rounds to no training record at all
    assert str(few) in message and "data.held_out=0.9" in message
    assert "data.share=0.0001" in refusal("data.share=0.0001")


def test_levels_that_do_not_fit_are_refused_here():
    assert "network.multipliers=[1, 1, 1, 1, 1]" in refusal("network.kind=unet", "network.multipliers=[1,1,1,1,1]")


def test_a_latent_that_does_not_fit_the_image_is_refused_with_the_sizes_that_do():
    message = refusal("latent.kind=kl", "latent.multipliers=[1,1,1,1]")
    assert "latent.multipliers=[1, 1, 1, 1] halves the image 3 times, which 8x8" in message
    assert "latents of 4x4 (2 multipliers) or latents of 2x2 (3 multipliers)" in message
    for way in (["data.size=16"], ["latent.multipliers=[1,1]"], ["latent.multipliers=[1,1,1]"], ["latent.kind=none"]):
        assert settle("latent.kind=kl", "latent.multipliers=[1,1,1,1]", *way)[1].records == RECORDS


def test_the_network_is_checked_at_the_shape_of_the_latents():
    """An image may be halved more often than its latent."""
    unet = ["network.kind=unet", "network.width=8", "network.multipliers=[1,1,1,1]"]
    assert settle(*unet)[1].shape == (1, 8, 8)
    assert "halves its input 3 times, which 4x4 do not allow" in refusal(*unet, "latent.kind=kl")


def test_a_large_network_is_validated_in_small(monkeypatch):
    """Itself it takes gigabytes and minutes, which a plan has not; training validates it before its first private step."""
    shapes, survey = [], module.survey
    monkeypatch.setattr(module, "survey", lambda *args: shapes.append(args[2]) or survey(*args))
    unet = ["network.kind=unet", "network.attention=[8]", "network.blocks=1"]
    settle(*unet, "network.width=9", "fine_tuning.trainable=[attention]")
    settle(*unet, "network.width=130", "fine_tuning.trainable=[attention]")
    assert shapes == [(1, 8, 8), (1, 4, 4)]
    assert "names nothing that this network has" in refusal(
        *unet[:1], "network.width=131", "fine_tuning.trainable=[attention]", "network.attention=[3]", method="dp-sgd"
    )


def test_groups_that_the_network_does_not_have_are_refused_before_anything_is_paid():
    message = refusal("fine_tuning.trainable=[attention]", method="dp-sgd")  # the MLP has none
    assert "fine_tuning.trainable=['attention']" in message and "rows" in message and "film" in message
    assert settle("fine_tuning.trainable=[attention, film]")[1].records == RECORDS
    unet = ["network.kind=unet", "network.width=8", "network.attention=[8]"]
    assert settle("fine_tuning.trainable=[attention]", *unet)[1].records == RECORDS


def test_refining_without_a_public_model_is_refused():
    with pytest.raises(BadInput, match=r"generation\.refine=0\.1 asks the public model.*set generation\.refine=0$"):
        preflight(resolve("dp-sgd", changes=["generation.refine=0.1", "pretraining.steps=0"]))


def test_a_rank_without_a_linear_layer_to_stand_beside_is_refused():
    message = refusal("fine_tuning.rank=4", "fine_tuning.trainable=[rows]", method="dp-sgd")
    assert "fine_tuning.rank=4" in message and "add film or attention" in message
    assert settle("fine_tuning.rank=4", method="dp-sgd")[0].fine_tuning.rank == 4


@pytest.mark.parametrize(("name", "expected"), [("", "scans"), ("clinic", "clinic")])
def test_the_ledger_knows_a_folder_by_its_last_part_or_as_told(tmp_path, monkeypatch, name, expected):
    folder(tmp_path / "scans")
    monkeypatch.chdir(tmp_path)
    settings, _, _ = settle("data.private=./scans/", f"data.name={name}", "data.held_out=0.3", "data.share=0.5")
    assert (settings.data.name, settings.data.private) == (expected, str(tmp_path / "scans"))
    private = private_set(settings)
    assert (private.name, private.source) == (expected, str(tmp_path / "scans"))
    assert (private.share, private.held_out) == (0.5, 0.3)


def test_the_plan_is_of_the_chosen_method():
    for method in ("rapid", "dp-sgd"):
        settings, facts, _ = settle(method=method)
        assert plan_for(settings, facts).method == method
    assert settings.network == Network(kind="mlp", width=192, blocks=2, condition=64)


def test_the_feature_extractor_is_settled_before_any_work(monkeypatch):
    monkeypatch.setattr(extractors, "_installed", lambda: False)
    settings, _, _ = preflight(resolve("rapid", changes=["evaluation.features=auto"]))
    assert settings.evaluation.features == "cnn"
    with pytest.raises(BadInput, match="evaluation.features=inception: the package torch-fidelity is missing"):
        preflight(resolve("rapid", changes=["evaluation.features=inception"]))
    monkeypatch.setattr(extractors, "_obstacle", lambda: "")
    settings, _, _ = preflight(resolve("rapid", changes=["evaluation.features=auto"]))
    assert settings.evaluation.features == "inception"


def test_eyes_learn_from_turns_where_there_is_one_public_class(tmp_path):
    one = f"data.public={folder(tmp_path / 'one', classes='a')}"
    assert "the public images are one class" in refusal(one, "method.votes=true")
    run = settle(one)[:2]
    assert run[1].public_classes == 1 and "(turns of one, 4 classes)" in one_extractor([run])


def test_runs_that_would_be_measured_in_two_ways_are_refused_together(tmp_path):
    letters, digits = (settle(f"data.glyphs={kind}")[:2] for kind in ("letters", "digits"))
    other = settle(f"data.public={folder(tmp_path / 'open')}")[:2]
    assert "(open, 2 classes)" in one_extractor([other, other]) and str(tmp_path) not in one_extractor([other])
    for pair in ([letters, digits], [letters, other]):
        with pytest.raises(BadInput, match="two feature extractors .*evaluation.features=inception"):
            one_extractor(pair)


def test_the_embedded_default_is_judged_alike_on_every_machine(monkeypatch):
    monkeypatch.setattr(extractors, "_obstacle", lambda: "")
    assert preflight(resolve("rapid"))[0].evaluation.features == "cnn"


def persons(root, count=20, each=3):
    """Class folders whose file names begin with a person."""
    for name in "ab":
        (root / name).mkdir(parents=True)
        for i in range(count * each):
            Image.new("L", (8, 8), (i,)).save(root / name / f"p{i // each}_{i}.png")
    return root


GROUPED = ("data.group=prefix", "fine_tuning.steps=2", "fine_tuning.sample_rate=0.5")


@pytest.mark.parametrize(("method", "more"), [("rapid", ["method.votes=true"]), ("dp-sgd", []), ("dp-promise", [])])
def test_groups_are_the_unit_of_all_numbers_and_of_the_certificate(tmp_path, method, more):
    scans = f"data.private={persons(tmp_path / 'scans')}"
    settings, facts, _ = settle(scans, *GROUPED, "data.unit=patient", *more, method=method)
    assert (facts.records, facts.unit, facts.images) == (16, "patient", 96)
    assert settings.privacy.delta == pytest.approx(16**-1.1)
    plan = plan_for(settings, facts)
    assert (
        "for one patient with all images and labels, under adding or removing one patient"
        in plan.certificate.sentence()
    )
    assert "patient" in plan.claim.source
    secret = private_set(settings)
    assert (secret.group, secret.unit) == ("prefix", "patient")
    alone = plan_for(*settle(scans, *GROUPED[1:], *more, method=method)[:2])
    assert alone.certificate.unit == "one image with its label" and alone.facts.unit == ""
    assert "adding or removing one record" in alone.certificate.sentence()


def test_the_ensemble_has_groups_too(tmp_path):
    scans = f"data.private={persons(tmp_path / 'scans')}"
    settings, facts, _ = settle(
        scans,
        "data.group=prefix",
        "method.members=3",
        "generation.images=10",
        "generation.steps=20",
        method="dp-ensemble",
    )
    assert "one person" in plan_for(settings, facts).certificate.unit


@pytest.mark.parametrize(
    ("method", "changes", "stage"),
    [
        (
            "dp-promise",
            ["method.phase_one=noised_once", "privacy.relation=replace_one", "method.training.batch=8"],
            "its first phase",
        ),
        ("dp-promise", ["method.phase_one=paper", "method.training.batch=8"], "its first phase"),
        ("empirical-denoiser", ["generation.images=6"], "its drawing"),
        ("dppm", ["method.training.batch=8", "method.k=4"], "its training without clipping"),
    ],
)
def test_what_cannot_bound_a_group_is_refused_in_one_line(tmp_path, method, changes, stage):
    scans = f"data.private={persons(tmp_path / 'scans')}"
    reported = refusal(scans, *GROUPED, *changes, method=method)
    assert (
        f"method.name={method} protects single images" in reported
        and stage in reported
        and "data.group=none" in reported
    )


def test_a_column_called_group_is_found_and_can_be_left_out(tmp_path):
    root = persons(tmp_path / "scans")
    rows = [f"{p.relative_to(root)},{p.parent.name},{p.name.partition('_')[0]}" for p in sorted(root.rglob("*.png"))]
    (root / "list.csv").write_text("\n".join(["path,label,group", *rows]))
    settings, facts, _ = settle(f"data.private={root / 'list.csv'}")
    assert (facts.records, facts.unit, settings.data.group) == (16, "person", "group")
    assert preflight(settings)[:2] == (settings, facts)
    settings, facts, _ = settle(f"data.private={root / 'list.csv'}", "data.group=none")
    assert (facts.records, facts.unit, settings.data.group) == (96, "", "none")


def test_a_table_among_what_is_left_out_comes_with_how_it_is_read(tmp_path):
    root = persons(tmp_path / "scans")
    settings, *_ = settle(f"data.private={root}")
    (root / "notes.txt").write_text("of nobody")
    assert left_out(settings.data) == ("data.private: 1 file .txt: left out",)
    (root / "list.csv").write_text("path,label")
    (line,) = left_out(settings.data)
    assert line.endswith(
        ": left out; a table that lists the images and their labels is read where data.private is the path of its .csv"
    )


def test_latents_that_are_larger_than_the_image_are_warned_of():
    latents = ["latent.kind=patch", "latent.patch=2", "latent.multipliers=[1]"]
    (line,) = settle(*latents, "latent.channels=5")[2]
    assert line.startswith("latent.channels=5 makes 80 numbers of an image of 64") and "use fewer" in line
    assert settle(*latents, "latent.channels=3")[2] == []


def test_private_training_from_random_weights_is_warned_of():
    (line,) = settle("pretraining.steps=0")[2]
    assert line.startswith("pretraining.steps=0: the denoiser learns from private records alone")
    for method in ("dppm", "moments", "dp-merf"):
        assert not any("pretraining" in line for line in settle(method=method)[2]), method


def test_heads_of_a_network_validated_in_small_fit_and_misfits_are_said_of_the_network_itself():
    unet = ("network.kind=unet", "network.attention=[4]", "network.blocks=2")
    for heads in ("attention_heads=64", "head_channels=64", "attention_heads=3"):
        assert settle(*unet, "network.width=192", f"network.{heads}")[0].network.width == 192
    wrong = refusal(*unet, "network.width=512", "network.head_channels=48")
    assert "network.head_channels=48 does not divide the 1024 channels" in wrong
