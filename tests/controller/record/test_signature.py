"""A signature covers a policy and its promotion."""

import base64
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.files import BundleFiles
from slicepilot.agents.learned.signature import sign, verify
from slicepilot.configs import ConfigError

OPENSSL = shutil.which("openssl")


@pytest.fixture(name="bundle")
def _signed(bundle: Path, keys: tuple[Path, Path]) -> Path:
    (bundle / "promotion.yaml").write_text("bundle: this\n")
    sign(BundleFiles.read(bundle), keys[0])
    return bundle


def test_a_signed_bundle_is_verified_and_loads(bundle: Path, keys: tuple[Path, Path]) -> None:
    verify(BundleFiles.read(bundle), keys[1])
    assert PolicyBundle.load(bundle).training.algorithm == "made"


def flip(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[5] ^= 1
        (folder / name).write_bytes(data)

    return change


def move_into_sums(folder: Path) -> None:
    """The bytes that were signed, as sums of a bundle that was never promoted."""
    import hashlib

    digest = hashlib.sha256((folder / "promotion.yaml").read_bytes()).hexdigest()
    (folder / "promotion.yaml").unlink()
    with (folder / "SHA256SUMS").open("a") as sums:
        sums.write(f"{digest}  promotion.yaml\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip("SHA256SUMS"), "does not fit SHA256SUMS and promotion.yaml"),
        (flip("promotion.yaml"), "does not fit SHA256SUMS and promotion.yaml"),
        (lambda folder: (folder / "promotion.yaml").unlink(), "does not fit SHA256SUMS and promotion.yaml"),
        (lambda folder: (folder / "SHA256SUMS.sig").unlink(), "SHA256SUMS.sig: missing; sign the bundle"),
        (lambda folder: (folder / "SHA256SUMS.sig").write_text("???"), "SHA256SUMS.sig: not base64"),
        (
            lambda folder: (folder / "SHA256SUMS.sig").write_bytes(base64.b64encode(bytes(64))),
            "does not fit SHA256SUMS and promotion.yaml",
        ),
        (move_into_sums, "SHA256SUMS: lists promotion.yaml"),
    ],
    ids=["sums", "promotion", "demoted", "unsigned", "garbage", "zeros", "moved"],
)
def test_what_was_changed_since_is_refused(
    change: Callable[[Path], object], message: str, bundle: Path, keys: tuple[Path, Path]
) -> None:
    change(bundle)
    with pytest.raises(ConfigError, match=message):
        verify(BundleFiles.read(bundle), keys[1])


def test_a_changed_policy_is_refused_by_its_sums(bundle: Path, keys: tuple[Path, Path]) -> None:
    flip("policy.onnx")(bundle)
    verify(BundleFiles.read(bundle), keys[1])
    with pytest.raises(ConfigError, match=r"policy\.onnx: its SHA-256"):
        PolicyBundle.load(bundle)


@pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")
def test_openssl_makes_the_keys_and_agrees(bundle: Path, tmp_path: Path) -> None:
    assert OPENSSL is not None
    private, public = tmp_path / "key.pem", tmp_path / "public.pem"
    subprocess.run([OPENSSL, "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run([OPENSSL, "pkey", "-in", private, "-pubout", "-out", public], check=True)
    sign(BundleFiles.read(bundle), private)
    verify(BundleFiles.read(bundle), public)
    script = (
        "(cat SHA256SUMS; sha256sum promotion.yaml) > ../signed; base64 -d SHA256SUMS.sig > ../signature; "
        'exec "$0" pkeyutl -verify -pubin -inkey "$1" -rawin -in ../signed -sigfile ../signature'
    )
    done = subprocess.run(
        ["sh", "-c", script, OPENSSL, public], cwd=bundle, capture_output=True, text=True, check=False
    )
    assert "Signature Verified Successfully" in done.stdout, done.stderr


def test_keys_of_another_kind_are_bad_input(bundle: Path, tmp_path: Path, keys: tuple[Path, Path]) -> None:
    private, public = keys
    for path, message in ((public, "not readable"), (tmp_path / "nowhere.pem", "No such file or directory")):
        with pytest.raises(ConfigError, match=f"{message}; expected an Ed25519 private key"):
            sign(BundleFiles.read(bundle), path)
    with pytest.raises(ConfigError, match="not readable; expected an Ed25519 public key as PEM"):
        verify(BundleFiles.read(bundle), private)


def test_another_key_is_refused(bundle: Path, make_keys: Callable[[str], tuple[Path, Path]]) -> None:
    with pytest.raises(ConfigError, match=r"not signed with the key '.*other-public\.pem'"):
        verify(BundleFiles.read(bundle), make_keys("other")[1])
