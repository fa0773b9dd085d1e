"""Who vouches for a policy bundle: an Ed25519 signature (RFC 8032) in ``SHA256SUMS.sig``, base64.

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
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicepilot.configs import ConfigError
from slicepilot.configs.reading import read_file

from .files import PROMOTION_FILE, SIGNATURE_FILE, SUMS_FILE, BundleFiles

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNING_KEY = Path("/etc/slicepilot/signing-key.pem")
"""Promotions are signed with this key where it exists and no other is given."""
MOST_KEY_BYTES = 1 << 16


def own_key() -> Path | None:
    """`SIGNING_KEY`, if it exists.

    Raises:
        ConfigError: others than its owner may read or write it: what it signs proves nothing.
    """
    try:
        status = SIGNING_KEY.stat()
    except (FileNotFoundError, PermissionError):  # the folder is not for everybody, nor is the key
        return None
    if status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(
            f"key {str(SIGNING_KEY)!r}: mode {mode:04o}, user {status.st_uid}; it must be root's own, of mode 0600"
        )
    return SIGNING_KEY


def sign(files: BundleFiles, private_key: Path) -> BundleFiles:
    """Write ``SHA256SUMS.sig`` for the bytes that were read; returns the files with it.

    Raises:
        ConfigError: no key of the right kind, or not a bundle.
        OSError: it cannot be written.
    """
    signature = base64.b64encode(load_private_key(private_key).sign(signed_bytes(files))) + b"\n"
    return files.write(SIGNATURE_FILE, signature)


def verify(files: BundleFiles, public_key: Path) -> None:
    """Check a bundle's signature. That the files fit their sums is `BundleFiles.check_sums`'s part.

    Raises:
        ConfigError: the bundle is not signed, or not with this key, or it was changed or promoted since.
    """
    from cryptography.exceptions import InvalidSignature

    key = load_public_key(public_key)
    where = f"{files}: {SIGNATURE_FILE}"
    if SIGNATURE_FILE not in files.parts:
        raise ConfigError(f"{where}: missing; sign the bundle with `slicepilot promote --sign`")
    try:
        signature = base64.b64decode(files.part(SIGNATURE_FILE).strip(), validate=True)
    except binascii.Error:
        raise ConfigError(f"{where}: not base64, as `slicepilot promote --sign` writes it") from None
    message = signed_bytes(files)
    try:
        key.verify(signature, message)
    except InvalidSignature:
        raise ConfigError(
            f"{where}: does not fit {SUMS_FILE} and {PROMOTION_FILE}: they were not signed "
            f"with the key {str(public_key)!r}, or were changed since"
        ) from None


def signed_bytes(files: BundleFiles) -> bytes:
    """What a signature covers; raises ConfigError."""
    sums = files.part(SUMS_FILE)
    if any(line.endswith(f"  {PROMOTION_FILE}".encode()) for line in sums.splitlines()):
        # Else the signature of a promoted bundle would also fit a bundle whose sums end with the promotion's line.
        raise ConfigError(f"{files}: {SUMS_FILE}: lists {PROMOTION_FILE}; expected the policy's files alone")
    if PROMOTION_FILE not in files.parts:
        return sums
    digest = hashlib.sha256(files.part(PROMOTION_FILE)).hexdigest()
    return sums + f"{digest}  {PROMOTION_FILE}\n".encode()


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """A key to sign with; raises ConfigError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    expected = "an Ed25519 private key as PEM without a password"
    key: Ed25519PrivateKey = _loaded(path, partial(load_pem_private_key, password=None), Ed25519PrivateKey, expected)
    return key


def load_public_key(path: Path) -> Ed25519PublicKey:
    """A key to verify with; raises ConfigError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key: Ed25519PublicKey = _loaded(path, load_pem_public_key, Ed25519PublicKey, "an Ed25519 public key as PEM")
    return key


def _loaded(path: Path, load: Callable[[bytes], Any], kind: Any, expected: str) -> Any:
    what = f"key {str(path)!r}"
    try:
        key = load(read_file(path, MOST_KEY_BYTES, what))
    except ConfigError as error:
        raise ConfigError(f"{error}; expected {expected}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{what}: not readable; expected {expected}") from error
    if not isinstance(key, kind):
        raise ConfigError(f"{what}: {type(key).__name__}; expected {expected}")
    return key
