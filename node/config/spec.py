"""One node with UPFs and services of others: ``configs/nodes/NAME.yaml`` or a file of the operator's, validated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from slicepilot.configs import ConfigError, load
from slicepilot.controller.telemetry.prometheus.config import PrometheusSpec, check_spec
from slicepilot.env.knobs import MIN_QUOTA_US, KnobName
from slicepilot.env.slices import SliceSet, SliceSpec

from .selectors import STRICT, ServiceSelector, UpfSelector, check_selector
from .traffic import DeviceNames, ListensSpec, TrafficSpec, check_traffic

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
NOT_NAMED = DeviceNames()
EgressBy = Literal["auto", "cilium", "shaper"]


def _of_a_testbed(qfi: int) -> int:
    raise ValueError("is what a testbed sends; expected traffic.qfis, which says which packets are the slice's")


@dataclass(frozen=True, kw_only=True)
class NodeSlice(SliceSpec):
    """A slice and its UPF, or the service that it is.

    Attributes:
        upf: its process; service: the process of a slice that is no UPF. One of the two is given.
        traffic: which of a UPF's packets, where other slices have the same UPF or the same N3.
        devices: where a UPF's packets pass.
        listens: where a service's packets pass.
        leave: knobs that are not to be moved, whatever they would do.
        egress_by: what its egress rate is. ``auto``: the entry of Cilium's bandwidth manager where that paces its pod
            and what it holds back is measured, else a shaper where it leaves its UPF; ``cilium``: that entry also where
            what it does is not seen; ``shaper``: never.
        own_cgroup: whether its UPF, in mode ``live``, may be moved into a CPU cgroup that is made for it where it has
            none of its own, with the threads of NAPI that take its packets. All slices of the UPF have to allow it.
        may_exceed_limit: whether its CPU limit may be set above the original limit, for example of its pod.
        ceiling_mcpu: the highest CPU limit that is ever set, also where no limit is wanted; none: as its bounds allow.
    """

    __pydantic_config__ = STRICT
    qfi: Annotated[int, AfterValidator(_of_a_testbed)] = 9
    upf: Annotated[UpfSelector, AfterValidator(check_selector)] | None = None
    service: Annotated[ServiceSelector, AfterValidator(check_selector)] | None = None
    traffic: Annotated[TrafficSpec, AfterValidator(check_traffic)] | None = None
    devices: DeviceNames = NOT_NAMED
    listens: ListensSpec | None = None
    leave: tuple[KnobName, ...] = ()
    egress_by: EgressBy = "auto"
    own_cgroup: bool = False
    may_exceed_limit: bool = True
    ceiling_mcpu: Annotated[float, Field(gt=0)] | None = None

    @property
    def selector(self) -> UpfSelector:
        """Which process it is, UPF or service."""
        result = self.upf or self.service
        assert result is not None
        return result

    def promised(self) -> SliceSpec:
        """The slice without its UPF."""
        return SliceSpec(
            **{node_slice.name: getattr(self, node_slice.name) for node_slice in dataclasses.fields(SliceSpec)}
        )


@dataclass(frozen=True)
class TelemetrySpec:
    """Where measurements come from, where it is not the probe.

    Attributes:
        prometheus: a server that scrapes the UPFs' pods.
    """

    __pydantic_config__ = STRICT
    prometheus: Annotated[PrometheusSpec, AfterValidator(check_spec)]


@dataclass(frozen=True)
class NodeSpec:
    """One node.

    Attributes:
        name: folders and sockets of its controller are named after it.
        slices: in order.
        uplink_mbps: rate of the N6 uplink that they share; none: not known, and taken for unlimited.
        cpus: that the UPFs may use; none: those that their processes may use, which is looked at again once a second.
        quota_period_ms: of CPU limits; a slice that has used up its quota waits for the rest of a period, so that the
            usual 100 ms would add up to 90 ms to the first burst of a slice that was idle.
        drop_horizon_ms: where Cilium paces a slice that is controlled, how long its packets may have to wait at most;
            none: as Cilium has it, 2 s.
        n3_buffer_packets: what a UPF's N3 socket holds; with Linux' default of 212,992 octets some 110 of full size.
        hardware: configuration of the identified hardware that a simulator of this node uses.
        telemetry: none: BPF programs measure every packet.
    """

    __pydantic_config__ = STRICT
    name: Name
    slices: Annotated[tuple[NodeSlice, ...], Field(min_length=1, max_length=64)]
    uplink_mbps: Annotated[float, Field(gt=0)] | None = None
    cpus: Annotated[float, Field(gt=0, le=4096)] | None = None
    quota_period_ms: Annotated[float, Field(ge=1, le=1000)] = 10.0
    n3_buffer_packets: Annotated[float, Field(gt=0)] = 110.0
    drop_horizon_ms: Annotated[float, Field(ge=10, le=2000)] | None = None
    hardware: str = "testbed"
    telemetry: TelemetrySpec | None = None

    @classmethod
    def from_yaml(cls, name_or_path: str) -> NodeSpec:
        """Load ``configs/nodes/NAME.yaml`` or a user's file; raises ConfigError."""
        return load("nodes", name_or_path, CheckedNodeSpec)

    @property
    def prometheus(self) -> PrometheusSpec | None:
        """The Prometheus server of `telemetry`, with labels from each slice's pod selector as defaults."""
        if self.telemetry is None:
            return None
        given = self.telemetry.prometheus
        pods = {node_slice.name: node_slice.selector.pod for node_slice in self.slices}
        known = {
            name: {
                key: value
                for key, value in (("namespace", pod.namespace), ("pod", pod.name), ("container", pod.container))
                if value is not None
            }
            for name, pod in pods.items()
            if pod is not None
        }
        names = {*known, *given.slices}
        return dataclasses.replace(
            given, slices={name: {**known.get(name, {}), **given.slices.get(name, {})} for name in names}
        )

    def require_probe(self, what: str) -> None:
        """Raises ConfigError where packets are not measured; ``what`` needs that."""
        if self.telemetry is not None:
            raise ConfigError(f"telemetry.prometheus: {what} looks at packets; expected a node without it")

    @property
    def least_limit_mcpu(self) -> float:
        """CPU limits below this are set as this: the kernel's least quota, in this period."""
        return MIN_QUOTA_US / self.quota_period_ms

    @property
    def promised(self) -> SliceSet:
        """The slices, with nothing of where they are."""
        return SliceSet(tuple(node_slice.promised() for node_slice in self.slices))

    def promised_within(self, cpus: Mapping[str, float]) -> SliceSet:
        """The slice set with no more threads than CPUs that each slice's UPF can use."""
        specs = [
            (node_slice, min(node_slice.upf_threads, cpus[node_slice.name])) for node_slice in self.promised.slices
        ]
        return SliceSet(tuple(dataclasses.replace(node_slice, upf_threads=threads) for node_slice, threads in specs))


def _check_kind(node_slice: NodeSlice) -> None:
    where = f"slices.{node_slice.name}"
    if (node_slice.upf is None) is (node_slice.service is None):
        given = "neither is given" if node_slice.upf is None else "both are given"
        raise ValueError(f"{where}: upf, service: {given}; expected upf for a UPF, service for any other program")
    if node_slice.service is not None and node_slice.listens is None:
        raise ValueError(f"{where}: listens: not given; expected device and ports of the service")
    foreign = ("traffic", "devices") if node_slice.service is not None else ("listens",)
    for key in foreign:
        if getattr(node_slice, key) not in (None, NOT_NAMED):
            raise ValueError(f"{where}: {key}: not of a {node_slice.selector.role}; expected without it")


def _check(spec: NodeSpec) -> NodeSpec:
    for node_slice in spec.slices:
        _check_kind(node_slice)
    for key in ("name", "s_nssai"):
        seen: set[Any] = set()
        for node_slice in spec.slices:
            value = getattr(node_slice, key)
            if value in seen:
                raise ValueError(f"slices: the {key} {value} is used twice")
            seen.add(value)
    for node_slice in spec.slices:
        _check_limits(node_slice, spec)
    return spec


def _check_limits(node_slice: NodeSlice, spec: NodeSpec) -> None:
    """Refuse bounds that no CPU limit could keep to."""
    high, least = node_slice.bounds.cpu_limit_mcpu[1], spec.least_limit_mcpu
    if high < least and "cpu_limit_mcpu" not in node_slice.leave:
        raise ValueError(
            f"slices: {node_slice.name}: bounds.cpu_limit_mcpu = {high:g} at most: the kernel's least quota of "
            f"{MIN_QUOTA_US} us is {least:g} mCPU in quota_period_ms = {spec.quota_period_ms:g}; expected an upper "
            "bound of at least that, a longer period, or leave: [cpu_limit_mcpu]"
        )


CheckedNodeSpec: Any = Annotated[NodeSpec, AfterValidator(_check)]
