"""Model-predictive control: plan on the simulator, without sight of the future."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from slicepilot.agents.base import Agent
from slicepilot.agents.bounds import smoothing
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from .planning import Planner, PlanningConfig

if TYPE_CHECKING:
    from slicepilot.env.reward import RewardWeights
    from slicepilot.env.simulator.engine import Engine
    from slicepilot.env.simulator.exogenous import Block
    from slicepilot.env.simulator.hardware import Hardware

# What a plan is judged on has to last at least as long as queues do.
HORIZON_S = 0.25
MOST_PERIODS = 16
RISE_S, FALL_S = 0.1, 2.0
PACKET_MBIT = np.float32(8e-6 * 1400)
LEAST_MBPS = np.float32(0.1)
UPLINK_BUSY = np.float32(0.5)


class Mpc:
    """A `Planner` with a model that only knows what telemetry shows.

    The model is the simulator with the node's nominal parameters. Loads go on as they are (averages that rise within
    0.1 s and fall within 2 s), a Mbit costs the CPU that it has been seen to cost, and the uplink carries what it is
    seen to carry while it is busy. The model's queues are its own, played on with the knobs that hold; that at N3 is
    set by what is measured: median delay times carried rate.

    Args:
        hardware: the node, as declared.
        weights: of the reward that counts, None for the default.
        proposals: agents whose wishes are among the candidates.
    """

    request_mcpu: FloatArray | None = None
    name = "mpc"

    def __init__(self, hardware: Hardware, weights: RewardWeights | None = None, proposals: Sequence[Agent] = ()):
        self.hardware, self.weights, self.proposals = hardware, weights, tuple(proposals)

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Forget loads and costs; the horizon follows the control period."""
        period_s = float(context.period_s.max())
        horizon = int(np.clip(round(HORIZON_S / period_s), 4, MOST_PERIODS))
        config = PlanningConfig(
            candidates=48, iterations=2, horizon=horizon, segments=1, replan_every=max(1, horizon // 4)
        )
        self._model = PredictedModel(self.hardware, slices, context, config.candidates)
        self._planner = Planner(config, self.weights, self.proposals)
        self._planner.reset(self._model, slices, context, seed)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The plan's knobs for the next period; updates the model with the last period."""
        self._model.see(telemetry, knobs)
        return self._planner.decide(telemetry, knobs)


class PredictedModel:
    """The simulator as `planning.Model`, with a future that goes on as the present."""

    engine: Engine
    context: Context

    def __init__(self, hardware: Hardware, slices: SliceSet, context: Context, copies: int) -> None:
        # Imported here, because a live controller must not import compiled kernels.
        from slicepilot.env.simulator import kernels
        from slicepilot.env.simulator.engine import Engine
        from slicepilot.env.simulator.exogenous import Window, tile
        from slicepilot.env.simulator.hardware import HardwareArrays

        self._kernels, self._tile = kernels, tile
        num_slices, lanes = context.promises.weight.shape
        arrays = HardwareArrays(hardware, lanes)
        arrays.logical_cpus = np.array(context.logical_cpus, np.float32)
        arrays.physical_cores = np.minimum(arrays.physical_cores, arrays.logical_cpus)
        arrays.uplink_mbps = np.array(context.uplink_mbps, np.float32)
        requests = np.broadcast_to(slices.column("cpu_request_mcpu"), (num_slices, lanes)).astype(np.float32)
        self._now_context, self.context = context, tile(context, copies)
        self._future = Window()
        self._now = Engine(num_slices, lanes)
        self._now.load(self._future, arrays, context.period_s, context.threads, requests)
        self._ahead = Window()
        self.engine = Engine(num_slices, copies * lanes)
        ahead = self.context
        self.engine.load(self._ahead, tile(arrays, copies), ahead.period_s, ahead.threads, tile(requests, copies))
        self._copies, self._hardware = copies, arrays
        self._rise, self._fall = smoothing(context.period_s, RISE_S), smoothing(context.period_s, FALL_S)
        self._offered = np.zeros((num_slices, lanes), np.float32)
        nominal = np.float32(1e-6) * arrays.upf_cost_us / PACKET_MBIT
        self._cpu_s_per_mbit = np.broadcast_to(nominal, self._offered.shape).astype(np.float32)
        self._uplink = arrays.uplink_mbps.copy()
        self._present = np.ones(self._offered.shape, np.bool_)

    def see(self, telemetry: Telemetry, knobs: Knobs) -> None:
        """Take over what a period under some knobs has shown: loads, costs, uplink and the N3 queues."""
        rises = telemetry.offered_mbps > self._offered
        self._offered += np.where(rises, self._rise, self._fall) * (telemetry.offered_mbps - self._offered)
        self._present = np.array(telemetry.valid)
        carries = self._present & (telemetry.carried_mbps > LEAST_MBPS)
        cost = np.float32(1e-3) * telemetry.cpu_use_mcpu / np.maximum(telemetry.carried_mbps, LEAST_MBPS)
        self._cpu_s_per_mbit += self._fall * carries * (cost - self._cpu_s_per_mbit)
        busy = telemetry.uplink_use_ratio > UPLINK_BUSY
        carried = (telemetry.carried_mbps * self._present).sum(axis=0)
        now = np.where(busy, carried / np.maximum(telemetry.uplink_use_ratio, UPLINK_BUSY), self._hardware.uplink_mbps)
        self._uplink += np.where(now < self._uplink, self._rise, self._fall) * (now - self._uplink)
        self._future.block = self._block(telemetry.offered_mbps)
        self._now._block = None
        self._now.apply(knobs.between_groups())
        self._now.advance()
        queue = self._now.state[self._kernels.N3_MBIT]
        room = self._hardware.n3_buffer_packets * PACKET_MBIT
        measured = np.float32(1e-6) * telemetry.delay_p50_us * telemetry.carried_mbps
        np.minimum(measured * self._present, room, out=queue)

    def start(self, steps: int) -> None:
        """Loads go on as they are."""
        self._ahead.block = self._block(self._offered, self._copies)
        self._state = self._tile(self._now.state, self._copies)
        self._elapsed = self._now.elapsed
        self.rewind()

    def rewind(self) -> None:
        """Back to the present."""
        self.engine.state[:] = self._state
        self.engine.elapsed = self._elapsed
        self.engine._block = None

    def _block(self, offered: FloatArray, copies: int = 1) -> Block:
        """One period with these loads; the engine asks for it again and again."""
        from slicepilot.env.simulator.exogenous import Block

        k = self._kernels
        shape = offered.shape
        slices = np.zeros((1, k.NUM_SLICE_EXOGENOUS, *shape), np.float32)
        slices[0, k.ARRIVE_MBIT] = offered * self._now_context.period_s * self._present
        slices[0, k.CPU_S_PER_MBIT] = np.maximum(self._cpu_s_per_mbit, np.float32(1e-7))
        slices[0, k.RX_CPU_S_PER_MBIT] = np.float32(1e-6) * self._hardware.rx_cost_us / PACKET_MBIT
        slices[0, k.FLOWS] = slices[0, k.PLACEMENT] = 1.0
        slices[0, k.PACKET_MBIT] = PACKET_MBIT
        slices[0, k.ACTIVE] = self._present
        node = np.stack([self._uplink, np.ones_like(self._uplink)])[None]
        return Block(np.tile(slices, copies), np.ascontiguousarray(np.tile(node, copies), np.float32))
