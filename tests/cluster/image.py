"""Images without a registry: one layer, as an archive that containerd imports.

The format is Docker's image specification 1.2, which `ctr image import` reads
(https://github.com/moby/docker-image-spec/blob/main/v1.2.md).
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDERS = ("bin", "dev", "etc", "proc", "sys", "tmp")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(path: Path, reference: str, machine: str, entry: Sequence[str], files: Mapping[str, Path]) -> None:
    """Write an image.

    Args:
        reference: its name and tag.
        machine: as `os.uname` calls it.
        entry: command line that it runs.
        files: programs to put in, by their paths there.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for name in FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        for name, source in files.items():
            with source.open("rb") as file:
                item = archive.gettarinfo(name=str(source), arcname=name.lstrip("/"))
                item.mode, item.uid, item.gid, item.mtime = 0o755, 0, 0, 0
                archive.addfile(item, file)
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]}
    known = {"architecture": ARCHITECTURES[machine], "os": "linux", "config": {"Entrypoint": list(entry)}}
    config = json.dumps(known | {"rootfs": rootfs}).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [reference], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path, "w") as archive:
        for file_name, data in ((name, config), ("layer.tar", layer.getvalue()), ("manifest.json", manifest)):
            item = tarfile.TarInfo(file_name)
            item.size = len(data)
            archive.addfile(item, io.BytesIO(data))
