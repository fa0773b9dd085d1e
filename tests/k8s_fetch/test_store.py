"""What is kept, for which namespaces, and how much of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from slicepilot.agents.learned.files import PROMOTION_FILE, BundleFiles
from slicepilot.agents.learned.signature import sign
from slicepilot.cluster.fetch import store as limits
from slicepilot.cluster.fetch.sources import FetchError
from slicepilot.cluster.fetch.store import FOLDER, MOST_KEPT, Store
from slicepilot.cluster.resources.wanted import CONFIG_MAP, RULES, Wanted
from slicepilot.configs import FailureError

from .bundles import digest, parts


def wanted(mark: str = "", namespace: str = "core") -> Wanted:
    return Wanted(namespace, CONFIG_MAP, "b", "", digest(parts(mark)))


def test_a_bundle_is_kept_for_root_and_outlives_the_agent(tmp_path: Path) -> None:
    result = Store(tmp_path).put_bundle(wanted(), parts(), ())
    assert BundleFiles.read(result).digest == wanted().digest
    for item in (tmp_path / FOLDER, result.parent, result, *result.iterdir()):
        assert not item.stat().st_mode & 0o077, item
    again = Store(tmp_path)
    assert again.find(wanted()) == result
    assert again.whole(result)
    assert "never promoted" in str(again.refusal(result))
    (result / "policy.onnx").write_bytes(b"")
    assert not again.whole(result)


def test_a_digest_is_no_way_to_what_another_namespace_has(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put_bundle(wanted(), parts(), ())
    assert store.find(wanted(namespace="guest")) is None


def test_what_does_not_fit_the_digest_is_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    changed = parts() | {"policy.onnx": b"x"}
    for given, why in (
        (parts("other"), "; expected "),
        (changed, "policy.onnx: its SHA-256 differs"),
        ({}, "No such file"),
    ):
        with pytest.raises(FetchError, match=why):
            store.put_bundle(wanted(), given, ())
    assert store.find(wanted()) is None


def test_a_signature_is_checked_where_it_is_required(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "key.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    private.chmod(0o600)
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    store = Store(tmp_path / "state", public)
    with pytest.raises(FetchError, match=r"SHA256SUMS\.sig: missing"):
        store.put_bundle(wanted(), parts(), ())
    folder = tmp_path / "b"
    folder.mkdir()
    for name, data in parts().items():
        (folder / name).write_bytes(data)
    signed = sign(BundleFiles.read(folder), private)
    assert store.put_bundle(wanted(), signed.parts, ()).is_dir()


def test_a_namespace_has_room_for_so_many_and_takes_none_of_others(tmp_path: Path) -> None:
    store = Store(tmp_path)
    theirs = store.put_bundle(wanted(namespace="other"), parts(), ())
    marks = [f"{number}" for number in range(MOST_KEPT + 2)]
    kept = []
    for number, mark in enumerate(marks):
        kept.append(store.put_bundle(wanted(mark), parts(mark), ()))
        os.utime(kept[-1], (number, number))
    there = [item.is_dir() for item in kept]
    assert there == [False, False] + [True] * MOST_KEPT
    assert theirs.is_dir()
    with pytest.raises(FetchError, match=f"uses {MOST_KEPT} on this node"):
        store.put_bundle(wanted("more"), parts("more"), kept)
    store.put_bundle(wanted("more", "other"), parts("more"), kept)
    assert all(item.is_dir() for item in kept[2:])


def test_bytes_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_BYTES", 100_000)
    store = Store(tmp_path)
    first = [store.put_bundle(wanted(mark), parts(mark), ()) for mark in ("1", "2")]
    with pytest.raises(FetchError, match="on this node"):
        store.put_bundle(wanted("3"), parts("3"), first)
    store.put_bundle(wanted("3"), parts("3"), first[1:])
    assert [item.is_dir() for item in first] == [False, True]


def test_rules_are_known_by_what_they_hold(tmp_path: Path) -> None:
    store, item = Store(tmp_path), Wanted("core", RULES, "g", "guard.yaml")
    first = store.put_rules(item, b"{}", ())
    os.utime(first, (1, 1))
    second = store.put_rules(item, b"dwell: {}", ())
    assert first != second
    assert store.find(item) == second
    assert store.put_rules(item, b"{}", ()) == first
    os.utime(second, (1, 1))
    assert Store(tmp_path).find(item) == first
    assert store.find(Wanted("core", RULES, "g", "other.yaml")) is None
    assert stat.S_IMODE(first.stat().st_mode) == 0o600


def test_what_nobody_uses_goes_after_a_day(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old, used, young = (store.put_bundle(wanted(mark), parts(mark), ()) for mark in ("1", "2", "3"))
    for item in (old, used):
        os.utime(item, (1, 1))
    store.tidy({used})
    assert [item.is_dir() for item in (old, used, young)] == [False, True, True]


def test_what_was_promoted_on_the_node_stays_and_makes_room_last(tmp_path: Path) -> None:
    """Its promotion is nowhere else."""
    store = Store(tmp_path)
    kept = [store.put_bundle(wanted(f"{number}"), parts(f"{number}"), ()) for number in range(MOST_KEPT)]
    (kept[0] / PROMOTION_FILE).write_text("{}")
    for number, item in enumerate(kept):
        os.utime(item, (number, number))
    store.put_bundle(wanted("more"), parts("more"), ())
    assert [item.is_dir() for item in kept[:2]] == [True, False], "the oldest without a promotion goes first"
    store.tidy(())
    assert [item.is_dir() for item in kept] == [True] + [False] * (MOST_KEPT - 1)


def test_half_of_a_bundle_is_removed_at_the_start_and_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    Store(tmp_path).put_bundle(wanted(), parts(), ())
    half = tmp_path / FOLDER / "bundles" / "core" / ".new-x"
    half.mkdir()
    Store(tmp_path)
    assert not half.exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / FOLDER).symlink_to(tmp_path)
    with pytest.raises(FailureError):
        Store(elsewhere)
