"""What was fetched, on disk: for root alone, by namespace, and bounded for each.

A bundle is known by its digest, and kept below the namespace that could read it: who knows the digest of another
namespace's bundle has nothing of that. Rules of the guard are files named by what they hold, so that a loop that was
started with one is told apart from one of what they are now.

    .fetched/bundles/NAMESPACE/DIGEST/            policy.onnx, bundle.yaml, SHA256SUMS, ...
    .fetched/rules/NAMESPACE/SOURCE-DIGEST.yaml   SOURCE: by ConfigMap and key
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from slicepilot.agents.learned.files import (
    DESCRIPTION_FILE,
    LIMITS_BYTES,
    MODEL_FILE,
    PROMOTION_FILE,
    SIGNATURE_FILE,
    SUMS_FILE,
    BundleFiles,
)
from slicepilot.agents.learned.signature import verify
from slicepilot.cluster.resources.wanted import Wanted
from slicepilot.configs import ConfigError, FailureError
from slicepilot.controller.promotion.certificate import check
from slicepilot.data.files import replace_file, write_synced

from .child import FetchError

FOLDER = ".fetched"
BUNDLES, RULE_FILES, NEW = "bundles", "rules", ".new-"
MOST_KEPT = 8
"""Bundles of a namespace, and rules; those that are in use among them."""
MOST_BYTES = 128 << 20
"""Of a namespace's bundles. Four of the largest kind fit, and thousands of such as the one that is shipped."""
MOST_NAMESPACES = 64
UNUSED_S = 86_400.0


class Store:
    """May be used by several threads.

    Args:
        folder: where loops have their journals; outlives the agent.
        trust: public key (PEM) that bundles have to be signed with; None: they need not be.

    Raises:
        FailureError: it cannot be made, or is not for root alone.
    """

    def __init__(self, folder: Path, trust: Path | None = None) -> None:
        self._root, self._trust = folder / FOLDER, trust
        self._lock = threading.Lock()
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            for one in (self._root, self._root / BUNDLES, self._root / RULE_FILES):
                one.mkdir(mode=0o700, exist_ok=True)
                found = one.lstat()
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                    raise FailureError(f"{one}: accepted: a folder of root's own")
                one.chmod(0o700)
            for half in (self._root / BUNDLES).glob(f"*/{NEW}*"):
                shutil.rmtree(half)
        except OSError as error:
            raise FailureError(f"{self._root}: {error.strerror or error}") from error

    def find(self, wanted: Wanted) -> Path | None:
        """Where it is; of rules those that were put there last."""
        with self._lock:
            if wanted.digest:
                folder = self._bundles(wanted.namespace) / wanted.digest
                return folder if folder.is_dir() else None
            own = sorted(self._rules(wanted.namespace).glob(f"{_source(wanted)}-*.yaml"), key=_age, reverse=True)
            return own[0] if own else None

    def put_bundle(self, wanted: Wanted, parts: Mapping[str, bytes], used: Collection[Path]) -> Path:
        """Keep a bundle, if it is the one that is wanted.

        Args:
            wanted: which.
            parts: its files.
            used: paths that must stay.

        Raises:
            FetchError: it is another one, or its files do not fit its sums; or there is no room for it.
        """
        files = BundleFiles(Path(wanted.name), Path(wanted.name), parts)
        try:
            digest = files.digest
            if digest != wanted.digest:
                raise FetchError(f"{SUMS_FILE} there has the SHA-256 {digest}; accepted: {wanted.digest}, as declared")
            if self._trust is not None:
                verify(files, self._trust)
            files.check_sums()
        except ConfigError as error:
            raise FetchError(str(error)) from error
        size = sum(map(len, parts.values()))
        with self._lock:
            own = self._bundles(wanted.namespace)
            target = own / wanted.digest
            try:
                self._make_room(own, size, used)
                staging = own / f"{NEW}{wanted.digest}"
                shutil.rmtree(staging, ignore_errors=True)
                staging.mkdir(mode=0o700)
                for name in parts.keys() & LIMITS_BYTES.keys():
                    write_synced(staging / name, parts[name], 0o600)
                if not target.is_dir():
                    staging.rename(target)
            except OSError as error:
                shutil.rmtree(own / f"{NEW}{wanted.digest}", ignore_errors=True)
                raise FetchError(f"it cannot be kept: {error.strerror or error}") from error
        return target

    def put_rules(self, wanted: Wanted, data: bytes, used: Collection[Path]) -> Path:
        """Keep rules; raises FetchError. Their age is when they were put there last."""
        with self._lock:
            own = self._rules(wanted.namespace)
            target = own / f"{_source(wanted)}-{hashlib.sha256(data).hexdigest()}.yaml"
            try:
                if target.is_file():
                    os.utime(target)
                else:
                    self._make_room(own, len(data), used)
                    replace_file(target, data, 0o600)
            except OSError as error:
                raise FetchError(f"it cannot be kept: {error.strerror or error}") from error
        return target

    def refusal(self, folder: Path) -> str | None:
        """Why a bundle may not act; None: it may."""
        try:
            files = BundleFiles.read(folder)
            check(files)
            if self._trust is not None:
                verify(files, self._trust)
        except ConfigError as error:
            return str(error)
        return None

    def marks(self, folder: Path) -> tuple[object, ...]:
        """Others when the bundle has been promoted, or signed, meanwhile."""
        found: list[object] = []
        for name in (PROMOTION_FILE, SIGNATURE_FILE):
            try:
                one = (folder / name).lstat()
            except OSError:
                found.append(None)
            else:
                found.append((one.st_ino, one.st_mtime_ns, one.st_size))
        return tuple(found)

    def whole(self, folder: Path) -> bool:
        """Whether a kept bundle is still what its name says: a disk may have lost some of it."""
        try:
            files = BundleFiles.read(folder)
            files.check_sums()
            return files.digest == folder.name
        except ConfigError:
            return False

    def drop(self, folder: Path) -> None:
        """Without a bundle that is not whole any more."""
        with self._lock:
            shutil.rmtree(folder, ignore_errors=True)

    def tidy(self, used: Collection[Path]) -> None:
        """Remove what nobody has used for a day, and touch what is in use: now and then."""
        now_s = time.time()
        with self._lock, contextlib.suppress(OSError):
            for kind in (BUNDLES, RULE_FILES):
                for own in (self._root / kind).iterdir():
                    for one in own.iterdir():
                        if one in used:
                            if kind == BUNDLES:
                                os.utime(one)
                        elif now_s - _age(one) > UNUSED_S:
                            _removed(one)
                    with contextlib.suppress(OSError):
                        own.rmdir()  # if nothing is in it any more

    def _make_room(self, own: Path, size: int, used: Collection[Path]) -> None:
        """By what the same namespace has and does not use, the oldest first; what others have is not touched."""
        if not own.is_dir() and sum(1 for _ in own.parent.iterdir()) >= MOST_NAMESPACES:
            raise FetchError(f"{MOST_NAMESPACES} other namespaces have theirs on this node; accepted: fewer")
        own.mkdir(mode=0o700, exist_ok=True)
        there = sorted((one for one in own.iterdir() if not one.name.startswith(NEW)), key=_age)
        sizes = {one: _size(one) for one in there}
        for one in [each for each in there if each not in used]:
            if len(sizes) < MOST_KEPT and sum(sizes.values()) + size <= MOST_BYTES:
                break
            _removed(one)
            del sizes[one]
        if len(sizes) >= MOST_KEPT or sum(sizes.values()) + size > MOST_BYTES:
            raise FetchError(
                f"its namespace has {len(sizes)} in use on this node, {sum(sizes.values()) >> 20} MiB; accepted: "
                f"{MOST_KEPT} of {MOST_BYTES >> 20} MiB together"
            )

    def _bundles(self, namespace: str) -> Path:
        return self._root / BUNDLES / namespace

    def _rules(self, namespace: str) -> Path:
        return self._root / RULE_FILES / namespace


def missing_parts(parts: Collection[str]) -> list[str]:
    """Files that every bundle has and this one lacks."""
    return [name for name in (SUMS_FILE, DESCRIPTION_FILE, MODEL_FILE) if name not in parts]


def _source(wanted: Wanted) -> str:
    return hashlib.sha256(f"{wanted.name}/{wanted.within}".encode()).hexdigest()[:16]


def _age(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(path: Path) -> int:
    return sum(one.stat().st_size for one in path.iterdir()) if path.is_dir() else path.stat().st_size


def _removed(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
