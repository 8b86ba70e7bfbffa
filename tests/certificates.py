"""A chain of certificates made for a test, by which images are signed."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


def name_of(text: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Ward 7"), x509.NameAttribute(NameOID.COMMON_NAME, text)]
    )


def certificate(subject, public, issuer, key) -> x509.Certificate:
    """Of the root, which signs itself, or of the signer, whom the root signs."""
    root, now = subject == issuer, datetime.datetime.now(datetime.UTC)
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    builder = (
        x509.CertificateBuilder(
            name_of(issuer), name_of(subject), public, x509.random_serial_number(), now - DAY, now + DAY
        )
        .add_extension(x509.BasicConstraints(ca=root, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=root, crl_sign=root, **usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    if not root:
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), critical=False)
    return builder.sign(key, hashes.SHA256())


def chain(folder: Path, key) -> tuple[Path, Path]:
    """Files of a chain that ends with the public half of `key`, and of the key."""
    root = ec.generate_private_key(ec.SECP256R1())
    signer = certificate("signer", key.public_key(), "root", root)
    both = [one.public_bytes(Encoding.PEM) for one in (signer, certificate("root", root.public_key(), "root", root))]
    certificates, private = folder / "chain.pem", folder / "key.pem"
    certificates.write_bytes(b"".join(both))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificates, private
