"""Looking at slices before anything is written: what a journal has to say about them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from slicepilot.controller.actuators.bandwidth import NO_QUOTA, bandwidth_files
from slicepilot.controller.actuators.targets import SliceTargets, paced_by, pod_of
from slicepilot.controller.actuators.weight import weight_file
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.cgroup_paths import awaited
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net.qdisc import RootQdisc
from slicepilot.controller.system.net.rtnetlink import RouteSocket

from .journal import FoundEgress, FoundPod, FoundSlice

OWN_NETNS = Path("/proc/self/ns/net")


def survey(targets: Sequence[SliceTargets]) -> tuple[FoundSlice, ...]:
    """The knobs of slices as they are; writes nothing.

    A shaper of ours that a crash has left counts as the device's default: it is what restoring removes.

    Raises:
        ActuatorError: a target is missing or not permitted, or somebody has configured a qdisc on a device.
    """
    return tuple(_slice(target) for target in targets)


def _slice(target: SliceTargets) -> FoundSlice:
    egress, throttle = None, paced_by(target).throttle
    if throttle is None and target.egress_device is not None and "egress_mbps" not in target.left:
        egress = _egress(target.egress_device, target.netns)
    if target.cgroup is None or awaited(target.cgroup):
        return FoundSlice(
            target.name, None, cgroup_inode=0, quota_us=0, period_us=0, weight=0, egress=egress, throttle=throttle
        )
    # By its own path: a link to it may lead elsewhere by the time that this is needed.
    path = target.cgroup.resolve()
    group = CpuGroup.at(path)
    with contextlib.closing(bandwidth_files(group)) as bandwidth, contextlib.closing(weight_file(group)) as weight:
        quota_us, period_us = bandwidth.read()
        return FoundSlice(
            name=target.name,
            cgroup=str(path),
            cgroup_inode=_stat(path).st_ino,
            quota_us=quota_us,
            period_us=period_us,
            weight=None if target.weighs_pod else int(weight.read()),
            egress=egress,
            pod=_pod(pod_of(group), target) if target.moves_pod or target.weighs_pod else None,
            throttle=throttle,
        )


def _pod(group: CpuGroup, target: SliceTargets) -> FoundPod:
    with contextlib.closing(bandwidth_files(group)) as bandwidth, contextlib.closing(weight_file(group)) as weight:
        quota_us, period_us = bandwidth.read()
        follows = target.moves_pod and quota_us != NO_QUOTA  # without a limit there is nothing to follow
        found = int(weight.read()) if target.weighs_pod else None
        limit = (quota_us, period_us) if follows else (None, None)
        return FoundPod(str(group.path), _stat(group.path).st_ino, limit[0], limit[1], found)


def _egress(device: str, netns: Path | None) -> FoundEgress:
    with contextlib.closing(RouteSocket(netns)) as route:
        qdisc = RootQdisc(route, device)
        qdisc.check()
        identity = _stat(netns or OWN_NETNS)
        return FoundEgress(
            device=device,
            ifindex=qdisc.index,
            netns=None if netns is None else str(netns),
            netns_device=identity.st_dev,
            netns_inode=identity.st_ino,
        )


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise ActuatorError.of(f"{path}: look at it", error) from error
