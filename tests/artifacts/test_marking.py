"""Every published picture says that a model made it, and may carry a signed manifest that says so too."""

import io
import json
import time

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from PIL import Image
from sklearn.datasets import load_digits

from artifacts.forms import FORMS
from artifacts.marking import MANIFEST, PNG, ImageSigner
from artifacts.packaging import Packaging
from artifacts.publish import publish
from artifacts.store import Store
from sfumato.config import Release
from sfumato.errors import BadInput
from sfumato.image_folder import SYNTHETIC, XMP, png_of
from sfumato.images import picture, save_png
from tests.certificates import chain
from tests.examples import keep_samples, make_record, picture_set

LARGEST_SIGNATURE = 20_000
"""Bytes that a signature with a chain of two certificates may add to a picture."""


@pytest.fixture
def c2pa():
    return pytest.importorskip("c2pa")


def test_the_mark_changes_no_pixel_and_costs_the_same_for_each(tmp_path):
    for channels in (1, 3):
        for pixels in picture_set(channels=channels).pixels:
            png = png_of(picture(pixels))
            save_png(tmp_path / "plain.png", picture(pixels))
            with Image.open(io.BytesIO(png)) as shown, Image.open(tmp_path / "plain.png") as plain:
                assert np.array_equal(np.asarray(shown), np.asarray(plain)) and shown.info["xmp"].decode() == XMP
            assert len(png) - (tmp_path / "plain.png").stat().st_size < 500
    assert SYNTHETIC in XMP and png == png_of(picture(pixels))


def test_what_the_marks_cost_is_little_and_printed(tmp_path, c2pa):
    """Bytes and milliseconds of an image: plain, marked, and signed by a chain of two certificates."""
    signer = ImageSigner(*chain(tmp_path, ec.generate_private_key(ec.SECP256R1())))

    def plain(pixels: np.ndarray) -> bytes:
        save_png(out := io.BytesIO(), picture(pixels))
        return out.getvalue()

    ways = (plain, lambda pixels: png_of(picture(pixels)), lambda pixels: signer.signed(png_of(picture(pixels))))
    print("\n| image | plain | marked | signed |\n| --- | --- | --- | --- |")
    for name, images in {"digits": digits(), "noise": picture_set(50, side=64, channels=3).pixels}.items():
        cells, sizes = [], []
        for way in ways:
            start = time.perf_counter()
            sizes.append(np.mean([len(way(pixels)) for pixels in images]))
            cells.append(f"{sizes[-1]:,.0f} bytes, {1000 * (time.perf_counter() - start) / len(images):.2f} ms")
        assert 0 < sizes[1] - sizes[0] < sizes[2] - sizes[1] < LARGEST_SIGNATURE, (
            "the signature costs most, and not much"
        )
        print(f"| {name}, {'x'.join(map(str, images.shape[1:]))} | {' | '.join(cells)} |")


def digits() -> np.ndarray:
    """Handwritten digits, 8x8."""
    return (load_digits().images[:200] * 255 / 16).astype(np.uint8)[:, None]


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()])
def test_a_signed_picture_reads_back_as_one_and_a_changed_one_does_not(tmp_path, c2pa, key):
    signer = ImageSigner(*chain(tmp_path, key))
    png = png_of(picture(picture_set().pixels[0]))
    signed = signer.signed(png)
    reader = c2pa.Reader(PNG, io.BytesIO(signed))
    (action,) = reader.get_active_manifest()["assertions"][0]["data"]["actions"]
    assert action == MANIFEST["assertions"][0]["data"]["actions"][0] and action["digitalSourceType"] == SYNTHETIC
    assert reader.get_validation_state() == "Valid"
    with Image.open(io.BytesIO(signed)) as shown, Image.open(io.BytesIO(png)) as before:
        assert np.array_equal(np.asarray(shown), np.asarray(before)) and shown.info["xmp"].decode() == XMP
    changed = signed[:-20] + bytes([signed[-20] ^ 1]) + signed[-19:]
    assert c2pa.Reader(PNG, io.BytesIO(changed)).get_validation_state() == "Invalid"


def test_a_set_is_published_signed_and_keeps_no_key(tmp_path, c2pa):
    store = Store.open(tmp_path / "store")
    record = make_record(tmp_path, samples_artifact=keep_samples(store, entries={"2": "DP"}).digest)
    certificates, private = chain(tmp_path, ec.generate_private_key(ec.SECP256R1()))
    packaging = Packaging(Release(licence="MIT"), ImageSigner(certificates, private))
    folder = publish(store, record, tmp_path / "out", packaging=packaging)
    paths = list(folder.glob(FORMS["folder"].glob))
    assert len(paths) == 6
    for path in (*paths, folder / "samples.png"):
        assert c2pa.Reader(PNG, io.BytesIO(path.read_bytes())).get_validation_state() == "Valid"
    assert (
        json.loads((folder / "card.json").read_text())["signed_images"] and "C2PA" in (folder / "README.md").read_text()
    )
    assert not [path for path in folder.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]


def test_what_does_not_sign_is_one_line(tmp_path, c2pa):
    certificates, private = chain(tmp_path, ec.generate_private_key(ec.SECP256R1()))
    (tmp_path / "other").mkdir()
    _, another = chain(tmp_path / "other", ec.generate_private_key(ec.SECP256R1()))
    (tmp_path / "text.pem").write_text("no key")
    curve = ec.generate_private_key(ec.SECP256K1())
    (tmp_path / "curve.pem").write_bytes(curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for one, key, words in (
        (tmp_path / "none.pem", private, "--sign-cert .*none.pem cannot be read: No such file"),
        (certificates, tmp_path / "text.pem", "--sign-key .*text.pem is no private key in PEM"),
        (certificates, tmp_path / "curve.pem", r"does not sign \(secp256k1\)"),
        (certificates, another, "do not sign by C2PA"),
        (private, private, "do not sign by C2PA"),
    ):
        with pytest.raises(BadInput, match=rf"^[^\n]*{words}[^\n]*$"):
            ImageSigner(one, key)
