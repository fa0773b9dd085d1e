"""Settings that never move: the published ones, none at all, static group weights, and CPU weights by order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from slicepilot.agents.bounds import within_bounds
from slicepilot.data.reference import PublishedSetting, published_settings
from slicepilot.env.arrays import BoolArray, FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import NICE, Knobs, NiceScope
from slicepilot.env.promises import static_order
from slicepilot.env.published import requests_of, setting_knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

if TYPE_CHECKING:
    from slicepilot.env.simulator.hardware import Hardware

# The node of Andrade and Wickboldt (2025): a Core i7-5500U with four threads and gigabit Ethernet.
PUBLISHED_LOGICAL_CPUS = 4.0
PUBLISHED_UPLINK_MBPS = 1000.0
# A node keeps something for the system and its own pods, so requests of all slices must fit in less than all of it.
ALLOCATABLE = 0.9
# One nice level is a factor of 1.25 in CFS weight (kernel: kernel/sched/core.c, sched_prio_to_weight).
NICE_STEP = 1.25
PACKET_BYTES = 1470.0

Column = npt.ArrayLike


class FixedAgent:
    """One setting for the whole run.

    Args:
        name: as shown in tables.
        cpu_limit_mcpu, nice, egress_mbps: per slice (S,) or one value for all; see `slicepilot.env.knobs.Knobs`.
        nice_scope: what nice means.
        request_mcpu: Kubernetes CPU requests (S,) of the pods, None for the slice specs' own.
        active_slices: how many slices the setting was published for; None where that does not apply. The agent itself
            sets the knobs of all slices.

    The knobs are moved into the slices' declared bounds at `reset`.
    """

    def __init__(
        self,
        name: str,
        cpu_limit_mcpu: Column = np.inf,
        nice: Column = 0.0,
        egress_mbps: Column = np.inf,
        nice_scope: NiceScope = "group",
        request_mcpu: Column | None = None,
        active_slices: int | None = None,
    ) -> None:
        self.name, self.active_slices = name, active_slices
        self.request_mcpu: FloatArray | None = None if request_mcpu is None else np.asarray(request_mcpu, np.float32)
        self._columns = [np.asarray(column, np.float32) for column in (cpu_limit_mcpu, nice, egress_mbps)]
        self._nice_scope: NiceScope = nice_scope

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Repeat the setting over slices and lanes.

        Raises:
            ValueError: the setting is for another number of slices.
        """
        shape = context.promises.weight.shape
        for column in self._columns:
            if column.ndim and len(column) != shape[0]:
                raise ValueError(f"{self.name}: a setting for {len(column)} slices; expected {shape[0]}")
        limit, nice, egress = (np.broadcast_to(c.reshape(-1, 1), shape) for c in self._columns)
        self._knobs = within_bounds(Knobs.of(limit, nice, egress, self._nice_scope), slices)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The setting."""
        return self._knobs


class StaticOrder(FixedAgent):
    """The simplest control that protects those that matter: no limits, and the nice levels of
    `slicepilot.env.promises.static_order`, which change as slices come and go."""

    def __init__(self) -> None:
        super().__init__("static-order")

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Take over the weights."""
        super().reset(slices, context, seed)
        self._weight = context.promises.weight
        self._bounds = slices.bound("nice", 0), slices.bound("nice", 1)
        self._valid: BoolArray = np.zeros(self._weight.shape, np.bool_)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The same knobs until a slice comes or goes."""
        if not np.array_equal(telemetry.valid, self._valid):
            self._valid = telemetry.valid.copy()
            self._knobs = self._knobs.copy()
            self._knobs.values[NICE] = np.clip(static_order(self._weight, self._valid), *self._bounds)
        return self._knobs


def no_control() -> FixedAgent:
    """No limit, equal weights, no shaping; the pods keep the requests of their specs."""
    return FixedAgent("no-control")


def _of_priority(slices: SliceSet, priority: float, others: float) -> FloatArray:
    column = np.full(len(slices), others, np.float32)
    column[slices.priority_index] = priority
    return column


def published(experiment: int, slices: SliceSet) -> FixedAgent:
    """One of the 26 settings of Andrade and Wickboldt (JNSM 33(4):90, 2025) as it was published.

    The priority slice gets slice 1's setting, every other slice the others'. Nice is of process scope, as in the study.
    Kubernetes sets a pod's request to its limit where only the limit is given, so a CPU limit also fixes a weight;
    pods without a limit are BestEffort (request 0). Experiments 1 to 4 differ from 5 only in how many slices were
    active.
    """
    return _published(f"experiment-{experiment}", _setting(experiment), slices, 1.0, 1.0)


def scaled(experiment: int, slices: SliceSet, logical_cpus: float, uplink_mbps: float) -> FixedAgent:
    """A published setting as shares of another node: CPU by its logical CPUs / 4, egress by its uplink / 1 Gbit/s."""
    cpu, egress = logical_cpus / PUBLISHED_LOGICAL_CPUS, uplink_mbps / PUBLISHED_UPLINK_MBPS
    return _published(f"experiment-{experiment}-scaled", _setting(experiment), slices, cpu, egress)


def _setting(experiment: int) -> PublishedSetting:
    settings = {setting.experiment: setting for setting in published_settings()}
    if experiment not in settings:
        raise ValueError(f"experiment = {experiment}; expected {min(settings)} to {max(settings)}")
    return settings[experiment]


def _published(name: str, setting: PublishedSetting, slices: SliceSet, cpu: float, egress: float) -> FixedAgent:
    knobs = setting_knobs(setting, len(slices), slices.priority_index)
    values = np.asarray([cpu, 1.0, egress], np.float32)[:, None, None] * knobs.values
    knobs = Knobs(values, knobs.nice_scope)
    return FixedAgent(
        name,
        cpu_limit_mcpu=knobs.cpu_limit_mcpu[:, 0],
        nice=knobs.nice[:, 0],
        egress_mbps=knobs.egress_mbps[:, 0],
        nice_scope=knobs.nice_scope,
        request_mcpu=requests_of(knobs)[:, 0],
        active_slices=setting.active_slices,
    )


def static_weights(
    ratio: float, slices: SliceSet, logical_cpus: float, via: Literal["request", "nice"] = "request"
) -> FixedAgent:
    """Group weights in a fixed ratio of the priority slice to each of the others, nothing else.

    ``request``: through the pods' CPU requests, as plain Kubernetes offers it; 1 CPU for the priority slice, less where
    the node cannot hold all requests. A request below 2 mCPU weighs like BestEffort, so 512 is the largest ratio.
    ``nice``: through group nice around 0, one level being a factor of 1.25, as far as the slices' bounds go.
    """
    if via == "nice":
        levels = np.log(ratio) / np.log(NICE_STEP)
        nice = _of_priority(slices, -np.rint(levels / 2), np.rint(levels) - np.rint(levels / 2))
        return FixedAgent(f"static-weights-{ratio:g}-nice", nice=nice)
    request = _of_priority(slices, 1000.0, 1000.0 / ratio)
    return FixedAgent(f"static-weights-{ratio:g}", request_mcpu=_schedulable(request, logical_cpus))


def static_weights_by_promise(slices: SliceSet, hardware: Hardware) -> FixedAgent:
    """Requests that reserve what each promise costs: committed rate x CPU time per Mbit of the node's UPF."""
    mcpu_per_mbps = 1e-3 * hardware.upf_cost_us / (8e-6 * PACKET_BYTES)
    request = mcpu_per_mbps * slices.column("sla.committed_mbps")[:, 0]
    return FixedAgent("static-weights-promise", request_mcpu=_schedulable(request, hardware.logical_cpus))


def _schedulable(request_mcpu: FloatArray, logical_cpus: float) -> FloatArray:
    """Requests scaled down together until the node can hold them, (S,)."""
    return np.asarray(request_mcpu * min(1.0, ALLOCATABLE * 1e3 * logical_cpus / request_mcpu.sum()), np.float32)
