"""Published pictures as PNG files that say that a model made them, to machines too.

Each holds XMP with IPTC's `DigitalSourceType` `trainedAlgorithmicMedia`; where there is a certificate for it, also a signed C2PA
manifest that says the same and is bound to these bytes. The pixels stay what they are. Not covered: marks in the pixels themselves; who
saves a picture anew loses both.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from sfumato import __version__
from sfumato.errors import BadInput
from sfumato.image_folder import SYNTHETIC, png_of

PNG = "image/png"
MANIFEST: Mapping[str, Any] = {
    "claim_generator_info": [{"name": "Sfumato", "version": __version__}],
    "format": PNG,
    "assertions": [
        {
            "label": "c2pa.actions",
            "data": {"actions": [{"action": "c2pa.created", "digitalSourceType": SYNTHETIC}]},
        }
    ],
}
"""The C2PA manifest of each picture."""
QUIET = {"builder": {"thumbnail": {"enabled": False}}, "verify": {"verify_after_sign": False}}
"""Settings of c2pa: a thumbnail would be larger than most pictures, and `ImageSigner` verifies one picture for all."""
ALGORITHMS = {"secp256r1": "es256", "secp384r1": "es384", "secp521r1": "es512", "ed25519": "ed25519"}
"""Curve of a key -> C2PA's name of the algorithm; RSA keys sign by PS256."""


class ImageSigner:
    """Signs pictures one by one, by C2PA."""

    def __init__(self, certificates: Path, key: Path) -> None:
        """Read a chain of certificates (PEM, the signer's first) and its private key (PEM); `BadInput` for what does not sign."""
        try:
            from c2pa import C2paError, C2paSignerInfo, Context, Settings, Signer
        except ImportError:
            raise BadInput("--sign-cert needs c2pa-python: pip install 'sfumato[signing]'") from None
        chain, private = _read("--sign-cert", certificates), _read("--sign-key", key)
        algorithm = _algorithm(key, private)
        try:
            self.context: Context = Context(Settings.from_dict(QUIET))
            self.signer: Signer = Signer.from_info(C2paSignerInfo(algorithm, chain, private, None))
            blank = Image.new("L", (1, 1))
            self.check(self.signed(png_of(blank)))
        except C2paError as error:
            reason = " ".join(str(error).split())
            raise BadInput(
                f"--sign-cert {certificates} and --sign-key {key} do not sign by C2PA ({reason}): give the chain of certificates in "
                "PEM, the signer's first, and the key that belongs to it"
            ) from None

    def signed(self, png: bytes) -> bytes:
        """The same picture with its manifest."""
        from c2pa import Builder

        out = io.BytesIO()
        Builder(dict(MANIFEST), self.context).sign(self.signer, PNG, io.BytesIO(png), out)
        return out.getvalue()

    def check(self, png: bytes) -> None:
        """Raise where a signed picture does not read back as one; whom to trust is for the reader to say."""
        from c2pa import C2paError, Reader

        state = Reader(PNG, io.BytesIO(png)).get_validation_state()
        if state not in ("Valid", "Trusted"):
            raise C2paError(f"what it signs reads back as {state}")


def _read(option: str, path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise BadInput(f"{option} {path} cannot be read: {error.strerror}; give a file in PEM") from None


def _algorithm(path: Path, private: bytes) -> str:
    """C2PA's name of the algorithm by which a key signs."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(private, None)
    except (ValueError, TypeError):
        raise BadInput(
            f"--sign-key {path} is no private key in PEM without a password: convert it by openssl"
        ) from None
    if isinstance(key, rsa.RSAPrivateKey):
        return "ps256"
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return ALGORITHMS["ed25519"]
    curve = key.curve.name if isinstance(key, ec.EllipticCurvePrivateKey) else type(key).__name__
    if curve not in ALGORITHMS:
        raise BadInput(f"--sign-key {path} is a key by which C2PA does not sign ({curve}): take P-256 or Ed25519")
    return ALGORITHMS[curve]
