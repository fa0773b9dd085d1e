"""Who stands behind a policy bundle: an Ed25519 signature (RFC 8032) in ``SHA256SUMS.sig``, base64.

Signed are the bytes of ``SHA256SUMS`` and, where the bundle has been promoted, after them the line that ``sha256sum
promotion.yaml`` prints. So openssl can check it too::

    (cat SHA256SUMS; sha256sum promotion.yaml) > signed
    base64 -d SHA256SUMS.sig > signature
    openssl pkeyutl -verify -pubin -inkey PUBLIC.pem -rawin -in signed -sigfile signature

Keys are PEM: ``openssl genpkey -algorithm ed25519 -out KEY.pem``, ``openssl pkey -in KEY.pem -pubout``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from ...configs import ConfigError
from ...data.files import replace_file
from .bundle import SUMS_FILE, read_part

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_FILE, PROMOTION_FILE = f"{SUMS_FILE}.sig", "promotion.yaml"


def bundle_digest(folder: Path) -> str:
    """What identifies a bundle's contents: the SHA-256 of its ``SHA256SUMS``, in hexadecimal.

    Raises:
        ConfigError: the file cannot be read.
    """
    return hashlib.sha256(read_part(folder, SUMS_FILE)).hexdigest()


def sign(folder: Path, private_key: Path) -> None:
    """Write ``SHA256SUMS.sig``.

    Raises:
        ConfigError: no key of the right kind, or not a bundle.
        OSError: it cannot be written.
    """
    signature = load_private_key(private_key).sign(signed_bytes(folder))
    replace_file(folder / SIGNATURE_FILE, base64.b64encode(signature) + b"\n")


def verify(folder: Path, public_key: Path) -> str:
    """Check a bundle's signature; returns `bundle_digest`. That the files fit their sums is `PolicyBundle.load`'s part.

    Raises:
        ConfigError: the bundle is not signed, or not with this key, or it was changed or promoted since.
    """
    from cryptography.exceptions import InvalidSignature

    key = load_public_key(public_key)
    where = f"bundle {str(folder)!r}: {SIGNATURE_FILE}"
    if not (folder / SIGNATURE_FILE).exists():
        raise ConfigError(f"{where}: missing; accepted: a bundle signed with `slicepilot promote --sign`")
    try:
        signature = base64.b64decode(read_part(folder, SIGNATURE_FILE).strip(), validate=True)
    except binascii.Error:
        raise ConfigError(f"{where}: not base64; accepted: what `slicepilot promote --sign` has written") from None
    message = signed_bytes(folder)
    try:
        key.verify(signature, message)
    except InvalidSignature:
        raise ConfigError(
            f"{where}: not of this {SUMS_FILE} and {PROMOTION_FILE} by {str(public_key)!r}; "
            "accepted: a bundle signed with that key and unchanged since"
        ) from None
    return hashlib.sha256(read_part(folder, SUMS_FILE)).hexdigest()


def signed_bytes(folder: Path) -> bytes:
    """What a signature covers; raises ConfigError."""
    sums = read_part(folder, SUMS_FILE)
    if any(line.endswith(f"  {PROMOTION_FILE}".encode()) for line in sums.splitlines()):
        # Else the signature of a promoted bundle would also be that of one whose sums end with the promotion's line.
        raise ConfigError(f"bundle {str(folder)!r}: {SUMS_FILE}: lists {PROMOTION_FILE}; accepted: the policy's files")
    if not (folder / PROMOTION_FILE).exists():
        return sums
    digest = hashlib.sha256(read_part(folder, PROMOTION_FILE)).hexdigest()
    return sums + f"{digest}  {PROMOTION_FILE}\n".encode()


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """A key to sign with; raises ConfigError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    accepted = "an Ed25519 private key as PEM without a password"
    text = _key(path, accepted)
    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"key {str(path)!r}: not readable as one; accepted: {accepted}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"key {str(path)!r}: {type(key).__name__}; accepted: {accepted}")
    return key


def load_public_key(path: Path) -> Ed25519PublicKey:
    """A key to verify with; raises ConfigError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    accepted = "an Ed25519 public key as PEM"
    text = _key(path, accepted)
    try:
        key = load_pem_public_key(text)
    except ValueError as error:
        raise ConfigError(f"key {str(path)!r}: not readable as one; accepted: {accepted}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"key {str(path)!r}: {type(key).__name__}; accepted: {accepted}")
    return key


def _key(path: Path, accepted: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"key {str(path)!r}: {error.strerror}; accepted: {accepted}") from error
