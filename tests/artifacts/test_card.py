"""A card is checked by a script that knows nothing of Sfumato; every lie that is tried on it is found."""

import ast
import base64
import json
import sys
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from artifacts.card import Evidence, card_of, registry_entry, seal, slow_price
from sfumato import verify_card
from sfumato.errors import BadInput
from sfumato.methods.plan import Certificate
from sfumato.privacy.accounting.accountant import priced
from sfumato.privacy.accounting.events import (
    DiscreteHistogram,
    Gaussian,
    Histogram,
    NoisedRecords,
    SubsampledGaussian,
    Uncertified,
)
from sfumato.privacy.ledger.chain import canonical
from sfumato.privacy.ledger.evidence import mechanisms_of
from sfumato.privacy.ledger.signing import Signer, signed
from sfumato.released import certificate as certificate_in
from tests.examples import make_record, picture_set

KEY, OTHER = Signer(Ed25519PrivateKey.generate()), Signer(Ed25519PrivateKey.generate())
STEPS = SubsampledGaussian(noise_multiplier=1.5, sample_rate=0.05, steps=200)
VOTES = DiscreteHistogram(noise_multiplier=6.0)
QUICK = [Gaussian(noise_multiplier=4.0), Gaussian(noise_multiplier=3.0, count=5)]
DELTA = 1e-5


def evidence(events, relation, key=KEY):
    head = signed({"ledger": "ab" * 16, "seq": 7, "hash": "cd" * 32, "public_key": key.public_key}, key)
    facts = {"mechanisms": mechanisms_of(events, relation), "noise": [], "public_data": ["ef" * 32], "head": head}
    return Evidence(facts, lambda value: signed(value, key))


def card_in(folder, events, relation="add_remove", key=KEY, **changes):
    """A published folder with one more file beside its card."""
    folder.mkdir(exist_ok=True)
    (folder / "images").mkdir()
    (folder / "images" / "000000.png").write_bytes(b"a picture")
    certificate = Certificate(**priced(events, DELTA, relation)._asdict(), delta=DELTA, relation=relation)
    reported = evidence(events, relation, key)
    card = card_of(make_record(folder, certificate=certificate), picture_set(), reported)
    seal(folder, {**card, **changes}, reported)
    return folder / "card.json"


def checked(card, capsys, key=KEY.public_key):
    """Exit code of the script, and its lines."""
    code = verify_card.main([str(card), *(["--key", key] if key else [])])
    return code, capsys.readouterr().out.splitlines()


def edit(card, resign=None, **changes):
    """Change fields of a card, and sign it anew where a key is given."""
    fields = {**json.loads(card.read_text()), **changes}
    card.write_text(json.dumps(signed(fields, resign) if resign else fields))


# ------------------------------------------------------------------------------------------------------- what holds


@pytest.mark.parametrize(
    ("relation", "events"),
    [
        ("add_remove", [STEPS]),
        ("add_remove", [VOTES, STEPS, DiscreteHistogram(noise_multiplier=20.0)]),
        ("replace_one", [VOTES, STEPS, Histogram(noise_multiplier=9.0)]),
        ("replace_one", [NoisedRecords(noise_multiplier=2.0), STEPS]),
        ("add_remove", [Gaussian(noise_multiplier=30.0 + i, count=500) for i in range(40)]),
        ("add_remove", [SubsampledGaussian(noise_multiplier=40.0, sample_rate=0.01, steps=300)]),
        ("add_remove", [SubsampledGaussian(noise_multiplier=1.4, sample_rate=1e-3, steps=100_000)]),
        ("replace_one", [SubsampledGaussian(noise_multiplier=1.2, sample_rate=0.1, steps=2000)]),
        ("add_remove", [SubsampledGaussian(noise_multiplier=5.0 + i, sample_rate=0.02, steps=50) for i in range(12)]),
    ],
    ids=["dp-sgd", "votes", "votes exchanged", "noised once", "ensemble", "tiny", "long", "60", "many steps"],
)
def test_a_card_holds(tmp_path, capsys, relation, events):
    code, lines = checked(card_in(tmp_path / "set", events, relation), capsys)
    assert code == 0 and [line.split()[0] for line in lines] == ["holds:"] * 3
    assert KEY.fingerprint in lines[0] and "the one given" in lines[0]
    assert lines[1] == "holds: 1 files as they were published"
    assert f"card: {priced(events, DELTA, relation).epsilon:.6g}" in lines[2] and "dp-accounting 0." in lines[2]


def test_without_a_key_the_signer_is_not_checked(tmp_path, capsys):
    card = card_in(tmp_path / "set", [STEPS], key=OTHER)
    code, lines = checked(card, capsys, key=None)
    assert code == 0 and OTHER.fingerprint in lines[0] and "signer not checked" in lines[0]
    file = tmp_path / "key.pub"
    file.write_text(KEY.public_key + "\n")
    code, lines = checked(card, capsys, key=str(file))
    assert code == 1 and lines[0].startswith("FAILS: the card was changed or is not signed by the key with fingerprint")
    pem = OTHER.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    file.write_bytes(pem)
    assert checked(card, capsys, key=str(file))[0] == 0


def test_a_file_that_is_named_like_the_key_does_not_stand_for_it(tmp_path, capsys, monkeypatch):
    """Whoever forges a folder puts his own key into it under the name of the signer's, for those who stand in the folder."""
    pem = KEY.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for number, key in enumerate((KEY.public_key, pem)):
        file = tmp_path / str(number) / key
        file.parent.mkdir(parents=True)
        file.write_text(OTHER.public_key)
        card = card_in(tmp_path / str(number), QUICK, key=OTHER)
        monkeypatch.chdir(card.parent)
        code, lines = checked(card, capsys, key=key)
        assert code == 1 and KEY.fingerprint in lines[0] and lines[0].startswith("FAILS: the card was changed")


# ------------------------------------------------------------------------------------------------------ what is found


def test_a_changed_card_is_found(tmp_path, capsys):
    card = card_in(tmp_path / "set", QUICK)
    whole = json.loads(card.read_text())
    lower = {**whole["certificate"], "epsilon": 0.99 * whole["certificate"]["epsilon"]}
    for changes in (
        {"certificate": lower},
        {"mechanisms": whole["mechanisms"][:1]},
        {"statement": "all is well"},
        {"unprotected": {}},
        {"signature": base64.b64encode(bytes(64)).decode()},
    ):
        card.write_text(json.dumps(whole))
        edit(card, **changes)
        code, lines = checked(card, capsys)
        assert code == 1 and lines[0].startswith("FAILS: the card was changed"), changes
        edit(card, resign=OTHER, **changes)
        assert checked(card, capsys)[0] == 1, changes


def test_a_field_that_stands_twice_is_found(tmp_path, capsys):
    """Programs take the last one, which was signed, and people may read the first."""
    card = card_in(tmp_path / "set", QUICK)
    whole, added = card.read_text(), '"epsilon": 0.1, '
    for at in (whole.index("{") + 1, whole.index('"epsilon"')):
        text = f"{whole[:at]}{added}{whole[at:]}"
        if at == 1:
            text = text.replace(added, '"statement": "(0.1, 1e-05)-differential privacy", ', 1)
        card.write_text(text)
        code, lines = checked(card, capsys)
        assert code == 1 and lines == ["FAILS: a field of the card stands twice"] * 3
        with pytest.raises(BadInput, match="was changed"):
            certificate_in(card.parent)


def test_an_epsilon_too_small_is_found_whoever_signed(tmp_path, capsys):
    card = card_in(tmp_path / "set", [VOTES, STEPS])
    certificate = json.loads(card.read_text())["certificate"]
    edit(card, resign=KEY, certificate={**certificate, "epsilon": 0.997 * certificate["epsilon"]})
    code, lines = checked(card, capsys)
    assert code == 1 and lines[0].startswith("holds") and lines[2].startswith("FAILS: dp-accounting ")
    edit(card, resign=KEY, certificate={**certificate, "relation": "replace_one"})
    assert "is not stated under replace_one" in checked(card, capsys)[1][2]
    edit(card, resign=KEY, certificate=None)
    assert "no certificate" in checked(card, capsys)[1][2]


@pytest.mark.parametrize(
    "mechanism",
    [
        {"constructor": "from_privacy_parameters", "arguments": {}, "count": 1},
        {"constructor": "from_gaussian_mechanism", "arguments": {"pessimistic_estimate": False}, "count": 1},
        {
            "constructor": "from_gaussian_mechanism",
            "arguments": {"standard_deviation": 1.0, "sensitivity": 0},
            "count": 1,
        },
        {
            "constructor": "from_gaussian_mechanism",
            "arguments": {"standard_deviation": 1.0, "sensitivity": 1},
            "count": 0,
        },
        {
            "constructor": "from_gaussian_mechanism",
            "arguments": {"standard_deviation": 1.0, "sensitivity": 1, "sampling_prob": 0.1},
            "count": 5,
        },
    ],
)
def test_a_mechanism_that_means_something_else_is_found(tmp_path, capsys, mechanism):
    card = card_in(tmp_path / "set", QUICK)
    edit(card, resign=KEY, mechanisms=[mechanism])
    code, lines = checked(card, capsys)
    assert code == 1 and lines[2].startswith("FAILS: {'constructor'")


def test_changed_added_and_missing_files_are_found(tmp_path, capsys):
    card = card_in(tmp_path / "set", QUICK)
    picture, more = card.parent / "images" / "000000.png", card.parent / "images" / "000001.png"
    picture.write_bytes(b"another")
    assert checked(card, capsys)[1][1] == "FAILS: file images/000000.png was changed"
    picture.unlink()
    assert checked(card, capsys)[1][1] == "FAILS: file images/000000.png is missing"
    picture.write_bytes(b"a picture")
    more.write_bytes(b"a private one")
    assert checked(card, capsys)[1][1] == "FAILS: file images/000001.png is not in the card"


def test_a_link_to_a_folder_is_a_file_that_was_added(tmp_path, capsys):
    """Whoever loads the images would follow it."""
    card, elsewhere = card_in(tmp_path / "set", QUICK), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "000001.png").write_bytes(b"a private one")
    (card.parent / "images" / "more").symlink_to(elsewhere, target_is_directory=True)
    assert checked(card, capsys)[1][1] == "FAILS: file images/more is not in the card"


def test_what_is_no_card_fails_in_one_line_each(tmp_path, capsys):
    for text in ("", "{}", "[]", '{"certificate": {"epsilon": NaN}}'):
        card = tmp_path / "card.json"
        card.write_text(text)
        code, lines = checked(card, capsys)
        assert code == 1 and len(lines) == 3 and all(line.startswith("FAILS: ") for line in lines)
    assert checked(tmp_path / "none.json", capsys)[0] == 1


@pytest.mark.parametrize("key", ["/nowhere/key.pem", "garbage", ""])
def test_a_key_that_is_none_is_named_in_place_of_the_card(tmp_path, capsys, key):
    code, lines = checked(card_in(tmp_path / "out", [Gaussian(noise_multiplier=2.0)]), capsys, key or " ")
    assert code == 1 and "is neither a file that is there nor a public key" in lines[0]
    assert [line.split(":")[0] for line in lines] == ["FAILS", "holds", "holds"]


def test_the_script_stands_alone_and_is_short():
    text = Path(verify_card.__file__).read_text()
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import | ast.ImportFrom)]
    modules = {(n.module if isinstance(n, ast.ImportFrom) else n.names[0].name).split(".")[0] for n in nodes}
    assert modules - set(sys.stdlib_module_names) == {"dp_accounting", "cryptography"}
    assert len(text.splitlines()) < 135 and "assert " not in text  # which `python -O` would leave out
    value = {"b": [1.5, "\u00e9"], "a": None}
    assert json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False) == canonical(value)


# ------------------------------------------------------------------------------------------- mechanisms and registry


def test_mechanisms_are_the_worst_pairs_with_equal_ones_together():
    events = [STEPS, STEPS, Gaussian(noise_multiplier=2.0, count=3), VOTES, Histogram(noise_multiplier=1.0)]
    once = {
        (m["constructor"], m["arguments"].get("sensitivity"), m["count"]) for m in mechanisms_of(events, "add_remove")
    }
    gauss, discrete = "from_gaussian_mechanism", "from_discrete_gaussian_mechanism"
    assert once == {(gauss, 1.0, 400), (gauss, 1.0, 3), (discrete, 1, 1), (gauss, 1.0, 1)}
    exchanged = mechanisms_of([*events, NoisedRecords(noise_multiplier=4.0)], "replace_one")
    by = {(m["constructor"], m["arguments"]["sensitivity"], m["count"]) for m in exchanged}
    assert by == {(gauss, 1.0, 400), (gauss, 2.0, 3), (discrete, 1, 2), (gauss, 2**0.5, 1), (gauss, 2.0, 1)}
    assert mechanisms_of([STEPS.model_copy(update={"steps": 0})], "add_remove") == []
    for event, relation in (
        (NoisedRecords(noise_multiplier=1.0), "add_remove"),
        (Uncertified(reason="x"), "replace_one"),
    ):
        with pytest.raises(BadInput, match="no certificate holds"):
            mechanisms_of([event], relation)


def test_the_slow_way_prices_what_ours_does():
    few = STEPS.model_copy(update={"steps": 20})
    for events, relation in (([VOTES, few], "replace_one"), ([Gaussian(noise_multiplier=0.5), VOTES], "add_remove")):
        slow = slow_price(events, DELTA, relation)
        assert slow == pytest.approx(priced(events, DELTA, relation).epsilon, rel=1e-3)
    assert slow_price([], DELTA, "add_remove") == 0.0


def test_the_entry_for_the_registry_says_what_the_card_says(tmp_path):
    card = json.loads(card_in(tmp_path / "set", [VOTES, STEPS]).read_text())
    entry = yaml.safe_load(yaml.safe_dump(registry_entry(card)))["deployment"]
    assert entry["privacy_loss"]["privacy_parameters"] == {
        name: card["certificate"][name] for name in ("epsilon", "delta")
    }
    assert entry["administrative"]["tier"] == 3 and "1437" in entry["dp_variant"]["unprotected_quantities"]
    assert card["unprotected"]["sets"] in entry["dp_variant"]["unprotected_quantities"]
    assert "from_discrete_gaussian_mechanism" in entry["implementation"]["mechanisms"]
