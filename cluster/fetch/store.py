"""Fetched bundles and guard rules on disk: readable by root only, by namespace, and limited for each namespace.

A bundle is stored by its digest below the namespace that could read it: knowing the digest of another namespace's
bundle gives access to nothing. Guard rules are files named by their contents, so that a loop that was started with an
older version differs from a loop with the current version.

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

from .sources import FetchError

FOLDER = ".fetched"
BUNDLES, RULE_FILES, NEW = "bundles", "rules", ".new-"
MOST_KEPT = 8
"""Bundles of a namespace, and files of rules, those in use included."""
MOST_BYTES = 128 << 20
"""Limit on a namespace's bundles: four of the largest permitted size."""
MOST_NAMESPACES = 64
UNUSED_S = 86_400.0


class Store:
    """May be used by several threads.

    Args:
        folder: of the loops' journals; outlives the agent.
        trust: public key (PEM) that bundles have to be signed with; None: no signature is required.

    Raises:
        FailureError: it cannot be made, or is not root's own.
    """

    def __init__(self, folder: Path, trust: Path | None = None) -> None:
        self._root, self._trust = folder / FOLDER, trust
        self._lock = threading.Lock()
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            for own in (self._root, self._root / BUNDLES, self._root / RULE_FILES):
                own.mkdir(mode=0o700, exist_ok=True)
                status = own.lstat()
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                    raise FailureError(f"{own}: expected a folder that root owns")
                own.chmod(0o700)
            for incomplete in (self._root / BUNDLES).glob(f"*/{NEW}*"):
                shutil.rmtree(incomplete)
        except OSError as error:
            raise FailureError(f"{self._root}: {error.strerror or error}") from error

    def find(self, wanted: Wanted) -> Path | None:
        """The stored bundle, or the rules that were stored last; None where there are none."""
        with self._lock:
            if wanted.digest:
                folder = self._root / BUNDLES / wanted.namespace / wanted.digest
                return folder if folder.is_dir() else None
            folder = self._root / RULE_FILES / wanted.namespace
            return max(folder.glob(f"{_source(wanted)}-*.yaml"), key=_modified_s, default=None)

    def put_bundle(self, wanted: Wanted, parts: Mapping[str, bytes], used: Collection[Path]) -> Path:
        """Store a bundle if it is the wanted bundle.

        Args:
            wanted: which.
            parts: its files.
            used: paths that must stay.

        Raises:
            FetchError: its digest, sums or signature are wrong, or there is no room for it.
        """
        files = BundleFiles(Path(wanted.name), Path(wanted.name), parts)
        try:
            if files.digest != wanted.digest:
                raise FetchError(f"{SUMS_FILE} there has the SHA-256 {files.digest}; expected {wanted.digest}")
            if self._trust is not None:
                verify(files, self._trust)
            files.check_sums()
        except ConfigError as error:
            raise FetchError(str(error)) from error
        with self._lock:
            own = self._root / BUNDLES / wanted.namespace
            target, staging = own / wanted.digest, own / f"{NEW}{wanted.digest}"
            try:
                self._make_room(own, sum(map(len, parts.values())), used)
                shutil.rmtree(staging, ignore_errors=True)
                staging.mkdir(mode=0o700)
                for name in parts.keys() & LIMITS_BYTES.keys():
                    write_synced(staging / name, parts[name], 0o600)
                if not target.is_dir():
                    staging.rename(target)
            except OSError as error:
                shutil.rmtree(staging, ignore_errors=True)
                raise FetchError(f"it cannot be stored: {error.strerror or error}") from error
        return target

    def put_rules(self, wanted: Wanted, data: bytes, used: Collection[Path]) -> Path:
        """Store rules, or renew the time of those that are stored already; raises FetchError."""
        with self._lock:
            own = self._root / RULE_FILES / wanted.namespace
            target = own / f"{_source(wanted)}-{hashlib.sha256(data).hexdigest()}.yaml"
            try:
                if target.is_file():
                    os.utime(target)
                else:
                    self._make_room(own, len(data), used)
                    replace_file(target, data, 0o600)
            except OSError as error:
                raise FetchError(f"it cannot be stored: {error.strerror or error}") from error
        return target

    def refusal(self, folder: Path) -> str | None:
        """Why a bundle may not act; None where it may."""
        try:
            files = BundleFiles.read(folder)
            check(files)
            if self._trust is not None:
                verify(files, self._trust)
        except ConfigError as error:
            return str(error)
        return None

    def marks(self, folder: Path) -> tuple[object, ...]:
        """Marks that change when the bundle is promoted or signed."""
        result: list[object] = []
        for name in (PROMOTION_FILE, SIGNATURE_FILE):
            with contextlib.suppress(OSError):
                status = (folder / name).lstat()
                result.append((name, status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(result)

    def whole(self, folder: Path) -> bool:
        """Whether a stored bundle still has the contents that its name says: a disk may have lost some."""
        try:
            files = BundleFiles.read(folder)
            files.check_sums()
            return files.digest == folder.name
        except ConfigError:
            return False

    def drop(self, folder: Path) -> None:
        """Remove a bundle that is not whole any more."""
        with self._lock:
            shutil.rmtree(folder, ignore_errors=True)

    def tidy(self, used: Collection[Path]) -> None:
        """Remove what was not used for a day, and renew the time of bundles in use: call it now and then.

        Promoted bundles stay: a promotion that was made on this node is nowhere else.
        """
        now_s = time.time()
        with self._lock, contextlib.suppress(OSError):
            for kind in (BUNDLES, RULE_FILES):
                for own in (self._root / kind).iterdir():
                    for path in own.iterdir():
                        if path in used:
                            if kind == BUNDLES:
                                os.utime(path)
                        elif now_s - _modified_s(path) > UNUSED_S and not _promoted(path):
                            _remove(path)
                    with contextlib.suppress(OSError):
                        own.rmdir()  # if it is empty now

    def _make_room(self, own: Path, size: int, used: Collection[Path]) -> None:
        """Remove the oldest unused entries of the same namespace, promoted bundles last; those of other namespaces
        stay."""
        if not own.is_dir() and sum(1 for _ in own.parent.iterdir()) >= MOST_NAMESPACES:
            raise FetchError(f"{MOST_NAMESPACES} other namespaces have bundles or rules on this node; expected: fewer")
        own.mkdir(mode=0o700, exist_ok=True)
        there = (path for path in own.iterdir() if not path.name.startswith(NEW))
        entries = sorted(there, key=lambda path: (_promoted(path), _modified_s(path)))
        sizes = {path: _size(path) for path in entries}
        for path in [each for each in entries if each not in used]:
            if len(sizes) < MOST_KEPT and sum(sizes.values()) + size <= MOST_BYTES:
                break
            _remove(path)
            del sizes[path]
        if len(sizes) >= MOST_KEPT or sum(sizes.values()) + size > MOST_BYTES:
            raise FetchError(
                f"its namespace uses {len(sizes)} on this node, {sum(sizes.values()) >> 20} MiB; expected: at most "
                f"{MOST_KEPT}, of {MOST_BYTES >> 20} MiB together"
            )


def missing_parts(parts: Collection[str]) -> list[str]:
    """Files that every bundle has and this bundle lacks."""
    return [name for name in (SUMS_FILE, DESCRIPTION_FILE, MODEL_FILE) if name not in parts]


def _source(wanted: Wanted) -> str:
    return hashlib.sha256(f"{wanted.name}/{wanted.within}".encode()).hexdigest()[:16]


def _modified_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _promoted(path: Path) -> bool:
    return (path / PROMOTION_FILE).exists()


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
