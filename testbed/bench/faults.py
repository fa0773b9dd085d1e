"""Faults of a controller in operation, for a rig: a function injects each as it would happen in reality.

They are what the fault tests and the soak have in common. A fault only does harm; whether it was survived is for the
caller to say.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from slicepilot.controller.system.bpf.libbpf import LIBRARY
from slicepilot.controller.system.bpf.libbpf_abi import BPF_TCX_INGRESS, LinkInfo
from slicepilot.controller.system.net.rtnetlink import RouteSocket
from slicepilot.testbed.lifecycle.layout import netns_path
from slicepilot.testbed.lifecycle.processes import ProgramError

from .rig import Rig

STOP_S = 5.0
DEATH_S = 2.0


def kill(pid: int) -> int:
    """SIGKILL; returns when it was sent (CLOCK_MONOTONIC ns)."""
    sent_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    return sent_ns


def kill_controller(rig: Rig) -> int:
    """SIGKILL to the loop's process; returns when it was sent."""
    return kill(_controller_pid(rig))


def kill_supervisor(rig: Rig) -> int:
    """SIGKILL to the supervisor; returns when it was sent."""
    assert rig.controller is not None
    return kill(rig.controller.supervisor)


def kill_both(rig: Rig) -> int:
    """SIGKILL to both, the supervisor first: it must not see the controller die."""
    pid = _controller_pid(rig)
    kill_supervisor(rig)
    return kill(pid)


def kill_publisher(rig: Rig) -> int:
    """SIGKILL to the process that publishes; returns its pid."""
    pid = publisher_pid(rig)
    kill(pid)
    return pid


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end, if it still lives."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def stop_controller(rig: Rig, seconds: float = STOP_S) -> int:
    """SIGSTOP to the loop's process for a while; returns when it was sent."""
    sent_ns = time.monotonic_ns()
    with stopped(_controller_pid(rig)):
        time.sleep(seconds)
    return sent_ns


def restart_upf(rig: Rig, slice_name: str) -> None:
    """The UPF of a slice is killed, is away for a second, and comes back."""
    kill(rig.testbed.upf(slice_name).pid)
    rig.testbed.restart_upf(slice_name)


def remove_namespace(rig: Rig, slice_name: str) -> None:
    """The network namespace of a slice is deleted, with its devices, while its UPF runs on."""
    plan = rig.testbed.layout.slices[rig.testbed.slices.index(slice_name)]
    subprocess.run(["ip", "netns", "delete", plan.netns], check=True)


def remove_cgroup(rig: Rig, slice_name: str) -> None:
    """A slice's UPF dies and its cgroup is removed, as when a pod goes."""
    group = rig.testbed.cgroup(slice_name)
    rig.testbed.upf(slice_name).stop()
    deadline = time.monotonic() + DEATH_S
    while True:
        try:
            group.rmdir()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ProgramError(f"{group}: {error.strerror}") from error
            time.sleep(0.01)


def detach_probe(rig: Rig, slice_name: str) -> int:
    """Detach all programs from the N3 devices; returns their number. TCX links have a device's index but not its
    namespace, so they are detached from all slices whose device has the same index; the clsact hook is removed, too."""
    plan = rig.testbed.layout.slices[rig.testbed.slices.index(slice_name)]
    enter = ["nsenter", f"--net={netns_path(plan.netns)}", "--"]
    with closing(RouteSocket(Path(netns_path(plan.netns)))) as route:
        taken = _detach_links(route.index_of("n3"))
    clsact = subprocess.run([*enter, "tc", "qdisc", "delete", "dev", "n3", "clsact"], check=False, capture_output=True)
    if not taken and clsact.returncode:
        raise ProgramError(f"{plan.netns}: no program on n3: {clsact.stderr.decode().strip()}")
    return taken


def _detach_links(ifindex: int) -> int:
    """BPF_LINK_DETACH (bpf(2)) of every TCX ingress link on devices of this number.

    Only links that exist at the start are detached: meanwhile a controller may attach the first of them again.
    """
    library = ctypes.CDLL(LIBRARY)
    result, number = [], ctypes.c_uint32(0)
    while library.bpf_link_get_next_id(number, ctypes.byref(number)) == 0:
        descriptor = library.bpf_link_get_fd_by_id(number)
        if descriptor < 0:
            continue
        info, size = LinkInfo(), ctypes.c_uint32(ctypes.sizeof(LinkInfo))
        library.bpf_obj_get_info_by_fd(descriptor, ctypes.byref(info), ctypes.byref(size))
        if (info.ifindex, info.attach_type) == (ifindex, BPF_TCX_INGRESS):
            result.append(descriptor)
        else:
            os.close(descriptor)
    taken = 0
    for descriptor in result:
        taken += library.bpf_link_detach(descriptor) == 0
        os.close(descriptor)
    return taken


def publisher_pid(rig: Rig) -> int:
    """The pid of the controller's publisher, its child process."""
    for child in children(_controller_pid(rig)):
        with contextlib.suppress(OSError):
            if b"publisher.process" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
    raise ProgramError("the controller has no publisher")


def children(pid: int) -> list[int]:
    """Processes that a process has started, proc_pid_task_children(5)."""
    result: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            result += map(int, task.read_text().split())
    return result


def _controller_pid(rig: Rig) -> int:
    if rig.controller is None:
        raise ProgramError("no controller runs")
    return rig.controller.pid
