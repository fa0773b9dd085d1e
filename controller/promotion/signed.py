"""A controller's evidence on disk: one file per run in ``evidence`` below its state folder, each with an HMAC-SHA256
(RFC 2104) by a key that only root, or the controller's user, can read (``evidence.key``).

Records are written by the publisher, which is not trusted; these files are written by the controller.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError
from slicepilot.data.files import PRIVATE, replace_file

from .evidence import Evidence

FOLDER, KEY_FILE = "evidence", "evidence.key"
VERSION, KEY_BYTES = 1, 32
MAX_FILES, MAX_BYTES = 256, 1 << 26
EXPECTED_FOLDER = "expected a state folder that only root or this user can write to"


class EvidenceFolder:
    """The evidence of one state folder; ``create`` makes what is missing, for the controller.

    Raises:
        ConfigError: a folder or key that others can write or read, or, to read, that is missing.
        OSError: key or folder cannot be made.
    """

    def __init__(self, state: Path, create: bool = False) -> None:
        self._folder = state / FOLDER
        try:
            _check_folder(state)
            if create:
                self._folder.mkdir(mode=0o700, exist_ok=True)
            _check_folder(self._folder)
            self._key = _key(state / KEY_FILE, create)
        except FileNotFoundError as error:
            raise ConfigError(
                f"records: {error.filename} is missing: expected the folder 'records' in the state folder of a "
                "controller, which keeps its evidence there"
            ) from None
        except PermissionError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}: run this as the controller's user") from error

    def save(self, run_id: str, evidence: dict[str, Evidence]) -> None:
        """Replace the file of a run; the oldest files are removed. Raises OSError."""
        document = {bundle: counted.to_json() for bundle, counted in evidence.items()}
        body = json.dumps({"version": VERSION, "run_id": run_id, "bundles": document}, separators=(",", ":"))
        path = self._folder / f"{run_id}.json"
        replace_file(path, f"{self._mac(body)}\n{body}\n".encode(), PRIVATE)
        files = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        for old in files[:-MAX_FILES]:
            old.unlink(missing_ok=True)

    def load(self, bundle: str) -> tuple[Evidence, dict[str, str]]:
        """The evidence for a bundle (its digest) of all runs, and the files that do not count, with the reason."""
        total, left_out = Evidence(), dict[str, str]()
        for path in sorted(self._folder.glob("*.json"), key=lambda file: file.lstat().st_mtime_ns):
            try:
                document = self._read(path)
                if bundle in document["bundles"]:
                    total.merge(Evidence.from_json(document["bundles"][bundle]))
            except (OSError, ValueError, KeyError, TypeError) as error:
                left_out[path.name] = str(error)
        return total, left_out

    def _read(self, path: Path) -> dict[str, Any]:
        with os.fdopen(_open_private(path), "rb") as file:
            mac, _, body = file.read(MAX_BYTES).decode("ascii", "replace").partition("\n")
        body = body.removesuffix("\n")
        if not hmac.compare_digest(mac.encode(), self._mac(body).encode()):
            raise ConfigError("not signed by this controller, or changed since")
        document: dict[str, Any] = json.loads(body)
        if (document["version"], f"{document['run_id']}.json") != (VERSION, path.name):
            raise ConfigError(f"expected version {VERSION}, and the name of its run")
        return document

    def _mac(self, body: str) -> str:
        return hmac.digest(self._key, body.encode(), "sha256").hex()


def _key(path: Path, create: bool) -> bytes:
    if create and not path.is_symlink() and not path.exists():
        replace_file(path, secrets.token_bytes(KEY_BYTES), PRIVATE)
    with os.fdopen(_open_private(path), "rb") as file:
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path}: {len(key)} bytes: expected the {KEY_BYTES} bytes that a controller has made")
    return key


def _open_private(path: Path) -> int:
    """Open a regular file that only root or this user can write or read; raises ConfigError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in {0, os.geteuid()} or mode & 0o077:
        os.close(descriptor)
        raise ConfigError(f"{path}: uid {status.st_uid}, mode {mode:04o}: expected a file of root's with mode 0600")
    return descriptor


def _check_folder(folder: Path) -> None:
    """Raise ConfigError if users other than root and this user could add files."""
    status = folder.stat()
    if status.st_uid not in {0, os.geteuid()} or status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"state {str(folder)!r}: uid {status.st_uid}, mode {mode:04o}: {EXPECTED_FOLDER}")
