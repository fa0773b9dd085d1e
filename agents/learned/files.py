"""The files of a bundle, read once: whatever is checked or run afterwards is these bytes."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slicepilot.agents.runtime.allowed import MOST_MODEL_BYTES
from slicepilot.configs import ConfigError
from slicepilot.configs.limited_yaml import MOST_BYTES
from slicepilot.configs.reading import Roots, opened_folder, path_of, read_in
from slicepilot.data.files import replace_file

from .shipped import folder_of, is_shipped

MODEL_FILE, DESCRIPTION_FILE, SUMS_FILE = "policy.onnx", "bundle.yaml", "SHA256SUMS"
SIGNATURE_FILE, PROMOTION_FILE = f"{SUMS_FILE}.sig", "promotion.yaml"
LIMITS_BYTES = {
    SUMS_FILE: 4096,
    SIGNATURE_FILE: 4096,
    DESCRIPTION_FILE: MOST_BYTES,
    PROMOTION_FILE: MOST_BYTES,
    MODEL_FILE: MOST_MODEL_BYTES,
}
FOREIGN = {".zip": "sb3", ".onnx": "onnx"}
"""Files of policies that are no bundles, and what ``--policy`` calls them."""


def refuse_file(bundle: Path) -> None:
    """Raise ConfigError for what is named like another library's file, and say what to write instead."""
    if kind := FOREIGN.get(bundle.suffix):
        raise ConfigError(
            f"bundle {str(bundle)!r}: a bundle is a folder; expected --policy {kind}:{bundle}, or a bundle made of it: "
            f"slicepilot bundle import {kind}:{bundle} --out FOLDER"
        )


@dataclass(frozen=True)
class BundleFiles:
    """The files of a bundle's folder when it was read.

    Attributes:
        folder: as it was named.
        path: the same without links.
        parts: contents of those of `LIMITS_BYTES` that were there.
    """

    folder: Path
    path: Path
    parts: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def read(cls, folder: str | Path, roots: Roots | None = None) -> BundleFiles:
        """Read a folder, or a shipped bundle by its name (`shipped.folder_of`).

        The folder is opened once, and symbolic links in it are refused. Files that are replaced in the meantime do not
        have the listed sums.

        Args:
            folder: path or name.
            roots: where it has to be; None: anywhere. Shipped bundles are always allowed.

        Raises:
            ConfigError: no such folder; a part that is no regular file, too long or not to be read.
        """
        root = folder_of(folder)
        what = f"bundle {str(root)!r}"
        refuse_file(root)
        with opened_folder(root, what, None if is_shipped(root) else roots) as opened:
            parts = {name: read_in(opened, name, most, f"{what}: {name}") for name, most in LIMITS_BYTES.items()}
            path = path_of(opened)
        return cls(root, path, {name: data for name, data in parts.items() if data is not None})

    @property
    def digest(self) -> str:
        """The SHA-256 of ``SHA256SUMS`` in hexadecimal, which identifies a bundle's contents. Raises ConfigError."""
        return hashlib.sha256(self.part(SUMS_FILE)).hexdigest()

    def part(self, name: str) -> bytes:
        """Contents of a file; raises ConfigError where there is none."""
        if name not in self.parts:
            inner = self.path / "bundle"
            hint = f"; did you mean {self.folder / inner.name}?" if (inner / SUMS_FILE).is_file() else ""
            raise ConfigError(f"{self}: {name}: No such file or directory{hint}")
        return self.parts[name]

    def write(self, name: str, data: bytes) -> BundleFiles:
        """Write or replace a file of the folder; returns the files with it.

        Raises:
            ConfigError: the folder is not there any more.
            OSError: it cannot be written; what was there is untouched.
        """
        with opened_folder(self.path, str(self)) as folder:
            replace_file(Path(f"/proc/self/fd/{folder}/{name}"), data)
        return dataclasses.replace(self, parts={**self.parts, name: data})

    def check_sums(self) -> None:
        """Raises ConfigError unless model and description have the listed sums; its message shows no contents,
        which may be anybody's."""
        listed: dict[str, str] = {}
        for line in self.part(SUMS_FILE).decode(errors="replace").splitlines():
            digest, _, name = line.partition("  ")
            listed[name] = digest
        for name in (DESCRIPTION_FILE, MODEL_FILE):
            if name not in listed:
                raise ConfigError(f"{self}: {SUMS_FILE}: has no line for {name}")
            if hashlib.sha256(self.part(name)).hexdigest() != listed[name]:
                raise ConfigError(
                    f"{self}: {name}: its SHA-256 differs from that in {SUMS_FILE}: the file was truncated or changed"
                )

    def __str__(self) -> str:
        return f"bundle {str(self.folder)!r}"
