"""A container's files, read from outside: where paths of a hostile one lead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.cluster.fetch.child import FetchError, ask
from slicepilot.cluster.fetch.volume import MODULE
from slicepilot.cluster.fetch.volume_reader import FOLDER, bundle_in
from slicepilot.configs import ConfigError

from .bundles import parts


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Iterator[int]:
    """Of a container: a volume at /data, and a secret beside it."""
    for folder in ("data/bundle", "secret"):
        (tmp_path / folder).mkdir(parents=True)
        for name, data in parts().items():
            (tmp_path / folder / name).write_bytes(data)
    descriptor = os.open(tmp_path, FOLDER)
    yield descriptor
    os.close(descriptor)


def test_a_bundle_is_read(root: int, tmp_path: Path) -> None:
    assert bundle_in(root, "/data", "bundle") == parts()
    (tmp_path / "data" / "now").symlink_to("bundle")
    assert bundle_in(root, "/data", "now/") == parts()
    (tmp_path / "mnt").symlink_to("/data/bundle")  # inside of the container's own root
    assert bundle_in(root, "/mnt", "") == parts()


@pytest.mark.parametrize(
    "within", ["../secret", "bundle/../../secret", "up", "absolute", "proc", "none", "file", "loop"]
)
def test_a_path_leads_nowhere_out_of_the_volume(root: int, tmp_path: Path, within: str) -> None:
    data = tmp_path / "data"
    (data / "up").symlink_to("../secret")
    (data / "absolute").symlink_to("/secret")
    (data / "proc").symlink_to("/proc/self/root")
    (data / "loop").symlink_to("loop")
    (data / "file").write_text("x")
    with pytest.raises(FetchError, match="accepted: a folder in the volume"):
        bundle_in(root, "/data", within)


def test_a_mount_leads_nowhere_out_of_the_root(root: int, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "above").symlink_to("../../../../../../../../etc")
    for mount in ("/out", "/above", "/../../etc"):
        with pytest.raises(FetchError, match="No such file"):
            bundle_in(root, mount, "")


def test_what_is_no_file_or_too_long_is_refused(root: int, tmp_path: Path) -> None:
    sums = tmp_path / "data" / "bundle" / "SHA256SUMS"
    sums.write_bytes(b"x" * 4097)
    with pytest.raises(ConfigError, match="more than 4096 bytes"):
        bundle_in(root, "/data", "bundle")
    for make in (lambda: sums.symlink_to("/etc/passwd"), lambda: os.mkfifo(sums), sums.mkdir):
        sums.unlink()
        make()
        with pytest.raises(ConfigError, match="accepted: a file"):
            bundle_in(root, "/data", "bundle")
        if sums.is_dir():
            sums.rmdir()


def test_a_process_that_is_not_in_the_container_is_not_looked_into() -> None:
    for pid in (os.getpid(), 1, 1 << 22):
        with pytest.raises(FetchError, match="its container does not run any more"):
            ask(MODULE, {"pid": pid, "container": "0a" * 32, "mount": "/", "within": ""}, 20.0)
