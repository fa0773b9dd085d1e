"""Hosts unlike this machine, as far as they can be had here: kernels that lack something, other mounts, other CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.system.bpf.btf import KERNEL, unusable
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.cgroup_paths import of_process
from slicepilot.controller.system.cores import cpus_beside, most_cpus, online_cpus, physical_cores
from slicepilot.controller.system.kernel_file import ActuatorError

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")


def doctor(*mounts: str) -> dict[str, Any]:
    """What it finds in a mount namespace of its own, by name, once these were mounted."""
    script = "; ".join(["set -e", "mount --make-rprivate /", *mounts, 'exec "$0" -m slicepilot.cli doctor --json'])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable], capture_output=True, text=True, check=False
    )
    return {item["name"]: item for item in json.loads(done.stdout)}


# -- BTF -----------------------------------------------------------------------------------------------------------


@AS_ROOT
def test_a_kernel_without_btf_is_said_to_be_that() -> None:
    """coroot/coroot-node-agent#163."""
    item = doctor(f"mount -t tmpfs none {KERNEL.parent}")["kernel BTF"]
    assert (item["ok"], item["found"]) == (False, f"{KERNEL} is missing")


PROBE = """
from slicepilot.controller.system.bpf.errors import ProbeError
from slicepilot.controller.telemetry.sched import SchedProbe
try:
    SchedProbe([None], ["a"]).close()
except ProbeError as error:
    print(error)
"""


@AS_ROOT
def test_btf_of_a_header_alone_is_said_to_be_damaged(tmp_path: Path) -> None:
    """cilium/ebpf#1902: 24 bytes."""
    (tmp_path / "btf").write_bytes(KERNEL.read_bytes()[:24])
    mount = f"mount --bind {tmp_path / 'btf'} {KERNEL}"
    item = doctor(mount)["kernel BTF"]
    assert (item["ok"], item["found"]) == (False, f"{KERNEL} is damaged: 24 bytes")
    script = f'mount --make-rprivate /; {mount}; exec "$0" -c "$1"'
    command = ["unshare", "--mount", "sh", "-ec", script, sys.executable, PROBE]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"does not describe itself ({KERNEL} is damaged: 24 bytes)" in said


@pytest.mark.parametrize("octets", [b"", b"\x9f\xeb\x01", bytes(4096)])
def test_what_is_no_btf_is_none(tmp_path: Path, octets: bytes) -> None:
    (tmp_path / "btf").write_bytes(octets)
    assert unusable(tmp_path / "btf") == f"{tmp_path / 'btf'} is damaged: {len(octets)} bytes"


# -- cgroups -------------------------------------------------------------------------------------------------------


@AS_ROOT
@pytest.mark.skipif(not Path("/sys/fs/cgroup/cpu/cpu.shares").exists(), reason="needs cgroup v1 with cpu")
def test_the_cpu_controller_is_found_wherever_it_is_mounted(tmp_path: Path) -> None:
    """Some systems have no link called cpu beside cpu,cpuacct, and others mount all of it elsewhere."""
    moved = (
        f"mount --bind /sys/fs/cgroup/cpu {tmp_path}",
        "umount /sys/fs/cgroup/cpu",
        "mount -t tmpfs no /sys/fs/cgroup",
    )
    assert doctor(*moved)["cpu cgroup"]["found"] == "v1"
    assert doctor("umount /sys/fs/cgroup/cpu")["cpu cgroup"]["found"] == "none"


@pytest.mark.parametrize("weight", ["cpu.weight", "cpu.shares"])
def test_a_kernel_without_cpu_limits_is_said_to_be_that(tmp_path: Path, weight: str) -> None:
    """Delegating the controller would not help there (podman-container-tools/podman#13379)."""
    (tmp_path / "cgroup.controllers").write_text("cpu io\n")
    with pytest.raises(ActuatorError, match=r"enable it: echo \+cpu"):
        CpuGroup.at(tmp_path)
    (tmp_path / weight).write_text("100\n")
    with pytest.raises(ActuatorError, match=r"a weight and no CPU limit: .* without CONFIG_CFS_BANDWIDTH"):
        CpuGroup.at(tmp_path)


def test_a_process_that_ends_while_its_group_is_read_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says ESRCH where the file was opened before, and ENOENT else."""
    real = Path.open
    with subprocess.Popen(["sleep", "60"]) as ending:

        def opened(path: Path, *arguments: Any, **options: Any) -> Any:
            file = real(path, *arguments, **options)
            if path == Path(f"/proc/{ending.pid}/cgroup"):
                ending.kill()
                ending.wait()
            return file

        monkeypatch.setattr(Path, "open", opened)
        with pytest.raises(FileNotFoundError):
            of_process(ending.pid)
        assert ending.returncode is not None, "it was looked at"


# -- CPUs ----------------------------------------------------------------------------------------------------------


def cpus(folder: Path, online: str, possible: str, siblings: dict[int, str] | None = None) -> Path:
    """As sysfs lists them (kernel: Documentation/admin-guide/cputopology.rst)."""
    (folder / "online").write_text(f"{online}\n")
    (folder / "possible").write_text(f"{possible}\n")
    for number, listed in (siblings or {}).items():
        topology = folder / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{listed}\n")
    return folder


EVEN = set(range(0, 128, 2))


@pytest.mark.parametrize(
    ("online", "own", "others"),
    [
        ("0-3,8", 8, {0, 1, 2, 3}),
        ("2-3", 2, {3}),
        ("2-3", None, {2, 3}),
        ("2", 2, {2}),
        (",".join(map(str, sorted(EVEN))), 64, EVEN - {64}),
    ],
)
def test_cpu_numbers_have_gaps_and_the_last_cpu_is_shared(
    tmp_path: Path, online: str, own: int | None, others: set[int]
) -> None:
    here = cpus(tmp_path, online, "0-127")
    assert cpus_beside(own, here) == others
    assert online_cpus(here) == others | ({own} if own is not None else set())
    assert most_cpus(here) == 128


@pytest.mark.parametrize(("listed", "cores"), [(["0-1", "0-1"], 1), (["0,64", "1,65"], 2), (["0", "1"], 2)])
def test_cores_are_counted_of_usable_cpus_alone(tmp_path: Path, listed: list[str], cores: int) -> None:
    """However siblings are numbered. The two CPUs are those that this process may use, or one of them."""
    usable = sorted(os.sched_getaffinity(0))[:2]
    if len(usable) < 2:
        pytest.skip("needs two CPUs")
    here = cpus(tmp_path, "0-127", "0-127", dict(zip(usable, listed, strict=True)))
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, usable)
        assert physical_cores(here) == cores
        os.sched_setaffinity(0, usable[:1])
        assert physical_cores(here) == 1
    finally:
        os.sched_setaffinity(0, before)
