"""Bundles that change, or links to them that flip, while root reads: what was checked is what runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.files import BundleFiles
from slicepilot.agents.learned.shipped import GENERALIST, SHIPPED
from slicepilot.agents.learned.signature import sign, verify
from slicepilot.configs import ConfigError
from slicepilot.configs.reading import Roots, read_file
from slicepilot.controller.service.loaded_policy import load_bundle
from slicepilot.controller.service.run_config import RunConfig
from slicepilot.data.files import replace_file
from tests.testbed.controlled import constant

from . import unprivileged
from .unprivileged import NOBODY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: who is not root is led nowhere")
SWAP = """
here, first, other = sys.argv[1:]
os.chdir(here)
print("ready", flush=True)
while True:
    for target in (first, other):
        os.symlink(target, ".new")
        os.rename(".new", "bundle")
"""
MIX = """
here, first, other = sys.argv[1:]
os.chdir(here)
print("ready", flush=True)
while True:
    for source in (first, other):
        for name in os.listdir(source):
            shutil.copyfile(f"{source}/{name}", ".new")
            os.rename(".new", f"bundle/{name}")
"""


@pytest.fixture
def theirs(reachable: Path) -> Path:
    """A folder of an unprivileged user."""
    path = reachable / "theirs"
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)
    return path


@pytest.fixture
def signed(reachable: Path, keys: tuple[Path, Path]) -> tuple[Path, Path]:
    """A signed bundle, and the public key."""
    folder = Path(constant(reachable / "signed", -0.5))
    sign(BundleFiles.read(folder), keys[0])
    return folder, keys[1]


@pytest.fixture
def attacker() -> Iterator[Callable[..., None]]:
    """Runs code as nobody until the test ends."""
    running: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: Path) -> None:
        process = unprivileged.start(code, *arguments)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    yield start
    for process in running:
        assert process.poll() is None, "the attack ended by itself"
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_link_of_somebody_else_is_not_followed(
    theirs: Path, signed: tuple[Path, Path], attacker: Callable[..., None], reachable: Path
) -> None:
    folder, _ = signed
    other = Path(constant(reachable / "other", 0.5))
    attacker(SWAP, theirs, folder, other)
    while not (theirs / "bundle").is_symlink():
        time.sleep(0.01)
    for path in (theirs / "bundle", theirs / "bundle" / "."):
        with pytest.raises(ConfigError, match=f"'bundle' is a link of user {NOBODY}; root follows only links of root"):
            load_bundle(path)
    with pytest.raises(ConfigError, match="is a link of user"):
        read_file(theirs / "bundle" / "policy.onnx", 1 << 20, "x")


def test_files_that_change_while_they_are_read_are_one_bundle_or_none(
    theirs: Path, signed: tuple[Path, Path], attacker: Callable[..., None], reachable: Path
) -> None:
    folder, public = signed
    other = Path(constant(reachable / "other", 0.5))
    models = {source: (source / "policy.onnx").read_bytes() for source in (folder, other)}
    shutil.copytree(folder, theirs / "bundle")
    os.chown(theirs / "bundle", NOBODY, NOBODY)
    attacker(MIX, theirs, folder, other)
    taken = refused = 0
    until_s = time.monotonic() + 10.0
    while time.monotonic() < until_s:
        try:
            files = BundleFiles.read(theirs / "bundle")
            verify(files, public)
            bundle = PolicyBundle.of(files)
        except ConfigError:
            refused += 1
        else:
            taken += 1
            assert bundle.model == models[folder]
    print(f"{taken} times the signed bundle, {refused} times none")
    assert refused


@pytest.mark.parametrize("name", ["policy.onnx", "bundle.yaml", "SHA256SUMS", "SHA256SUMS.sig", "promotion.yaml"])
@pytest.mark.parametrize("kind", ["link", "root's link", "pipe", "folder", "device", "8 GB"])
def test_a_part_that_is_no_file_of_a_policy_is_refused_at_once(reachable: Path, name: str, kind: str) -> None:
    folder = Path(constant(reachable / "bundle", 0.5))
    part = folder / name
    part.unlink(missing_ok=True)
    if kind in {"link", "root's link"}:
        part.symlink_to("/etc/shadow")
        os.lchown(part, 0 if kind == "root's link" else NOBODY, 0)
    elif kind == "pipe":
        os.mkfifo(part)
    elif kind == "folder":
        part.mkdir()
    elif kind == "device":
        os.mknod(part, 0o20666, os.makedev(1, 5))  # /dev/zero
    else:
        with part.open("wb") as file:
            file.truncate(8 << 30)
    start_s = time.thread_time()
    with pytest.raises(ConfigError, match=f"{name}: ") as caught:
        load_bundle(folder)
    assert time.thread_time() - start_s < 0.5
    assert "root:" not in str(caught.value)


def test_a_later_promotion_is_of_what_runs_or_of_nothing(reachable: Path, signed: tuple[Path, Path]) -> None:
    folder, public = signed
    policy = load_bundle(folder, str(public))
    with pytest.raises(ConfigError, match="never promoted"):
        policy.require_promoted(False)
    shutil.rmtree(folder)
    shutil.copytree(constant(reachable / "other", 0.5), folder)
    (folder / "promotion.yaml").write_text("bundle: this\n")
    with pytest.raises(ConfigError, match="was changed since it was loaded; reload it first"):
        policy.require_promoted(False)
    with pytest.raises(ConfigError, match="never promoted"):
        policy.require_promoted_as_loaded(False)


# -- declared folders ----------------------------------------------------------------------------------------------


def test_no_path_leads_out_of_the_declared_folders(reachable: Path, theirs: Path, tmp_path: Path) -> None:
    inside, outside = reachable / "inside", Path(constant(tmp_path / "outside", 0.5))
    inside.mkdir()
    roots = Roots((inside,))
    shutil.copytree(outside, inside / "bundle")
    assert BundleFiles.read(inside / "bundle", roots).path == inside / "bundle"
    (inside / "absolute").symlink_to(outside)
    (inside / "upwards").symlink_to(f"../../../../../../..{outside}")
    (inside / "beside").symlink_to("bundle")
    (inside / "deeper").mkdir()
    (inside / "deeper" / "back").symlink_to("../bundle")
    (inside / "magic").symlink_to("/proc/self/root")
    (inside / "itself").symlink_to("itself")
    assert BundleFiles.read(inside / "deeper" / "back", roots).path == inside / "bundle"
    assert BundleFiles.read(inside / "beside", roots).path == inside / "bundle"
    for path in (
        outside,
        Path("bundle"),
        Path("/"),
        inside / ".." / outside.relative_to("/"),
        inside / "bundle" / ".." / ".." / "theirs",
        inside / "absolute",
        inside / "upwards",
        inside / "magic" / outside.relative_to("/"),
        inside / "itself",
        Path(f"{inside}-not"),
    ):
        with pytest.raises(ConfigError, match=r"expected an absolute path below|out of the declared|Too many levels"):
            BundleFiles.read(path, roots)
    assert BundleFiles.read("generalist", roots).digest, "what is shipped is nobody else's"


def test_the_declared_folders_are_those_of_the_start_unless_said_otherwise(reachable: Path) -> None:
    folders = RunConfig(bundle=f"{reachable}/mine/bundle", guard=f"{reachable}/guards/own.yaml").roots.folders
    assert folders[:2] == (reachable / "mine", reachable / "guards")
    assert [*map(str, folders[2:])] == ["/etc/slicepilot", "/var/lib/slicepilot/bundles"]
    assert Path("/") not in RunConfig(bundle="/bundle").roots.folders
    for shipped in (GENERALIST, str(SHIPPED / GENERALIST)):
        assert RunConfig(bundle=shipped).roots == RunConfig().roots, "neither the working folder nor the package"
    assert RunConfig(reload_roots=("/srv/policies",), bundle="/a/b").roots.folders == (Path("/srv/policies"),)
    for root in ("relative", "/", "/a/../../b"):
        with pytest.raises(ConfigError, match=r"reload_roots\.0 = '.*': expected the absolute path"):
            RunConfig().override(reload_roots=(root,))


# -- writing into a folder of somebody else ------------------------------------------------------------------------


def test_root_writes_through_no_link_that_somebody_has_put_in_the_way(theirs: Path, reachable: Path) -> None:
    victim = reachable / "victim"
    victim.write_text("precious")
    for pid in (os.getpid(), os.getpid() + 1):
        (theirs / f".promotion.yaml.{pid}").symlink_to(victim)
    replace_file(theirs / "promotion.yaml", b"promoted")
    assert victim.read_text() == "precious"
    assert (theirs / "promotion.yaml").read_text() == "promoted"
    assert not (theirs / "promotion.yaml").is_symlink()
