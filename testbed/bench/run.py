"""A whole controller on a bench node: loop under guard, ring, publisher, journal and supervisor, as in operation."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from slicepilot.controller.actuators.shadow import ShadowActuator
from slicepilot.controller.loop.live_backend import LiveBackend, live_context
from slicepilot.controller.loop.loop import LoopReport
from slicepilot.controller.loop.node import Node
from slicepilot.controller.publisher.handle import Publisher, PublisherOptions
from slicepilot.controller.record.ring import TickRing
from slicepilot.controller.service.controller import Controller
from slicepilot.controller.service.loaded_policy import load_bundle, policy_of
from slicepilot.controller.service.run_config import RunConfig
from slicepilot.controller.system.signals import StopRequest
from slicepilot.controller.telemetry.source import KernelSource
from slicepilot.env.slices import SliceSet

from .node import BenchNode

QUOTA_PERIOD_US = 10_000
UPLINK_MBPS = 1000.0


@dataclass(frozen=True)
class BenchRun:
    """A controller that is ready to run.

    Attributes:
        operation: live, on all slices.
        publisher: beside it.
        stop: ends it.
    """

    operation: Controller
    publisher: Publisher
    stop: StopRequest

    def ticks(self, count: int) -> LoopReport:
        """So many of them.

        Raises:
            KeyboardInterrupt: it was stopped.
            RuntimeError: something failed on the way.
        """
        report = self.operation.run(count, force=True)
        if self.stop.requested:
            raise KeyboardInterrupt
        if report.last_error is not None:
            raise RuntimeError(report.last_error)
        return report


@contextlib.contextmanager
def opened(made: BenchNode, slices: SliceSet, period_ms: float) -> Iterator[Node]:
    """A bench node to control, closed at the end."""
    source = KernelSource(made.points, uplink_mbps=UPLINK_MBPS)
    with contextlib.ExitStack() as undo:
        undo.callback(source.close)
        period_s = 1e-3 * period_ms
        context = live_context(slices, period_s, UPLINK_MBPS)
        backend = LiveBackend(slices, source, ShadowActuator(made.targets), made.cgroups, context, period_s)
        undo.callback(backend.close)
        yield Node("bench", "bench", backend, made.targets, QUOTA_PERIOD_US)


@contextlib.contextmanager
def bench_run(config: RunConfig, node: Node, mode: Literal["shadow", "live"] = "live") -> Iterator[BenchRun]:
    """A controller over a node, gone at the end; the caller closes the node. The policy is that of ``config``."""
    config = replace(config, name=node.name, mode=mode, period_ms=1e3 * node.backend.context.period_s.item())
    with contextlib.ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="slicepilot-bench-")))
        folder.chmod(0o755)  # the publisher writes records as another user
        # The journal of somebody's node lies where `slicepilot restore` looks for it.
        state = folder / "state" if node.kind == "bench" else Path(config.state_root) / f"{node.name}-bench"
        ring = TickRing(folder / "ticks", len(node.backend.slices))
        undo.callback(ring.close)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(ours.close)
        publisher = Publisher.start(
            PublisherOptions(run=folder, state=folder, listen="off", log="off", estimate_s=0.0, off_cpu=config.cpu),
            theirs,
        )
        undo.callback(publisher.stop)
        stop = StopRequest()
        # A bundle is tried on its own slices: back to back, the period is shorter than any decision.
        policy = load_bundle(config.bundle) if config.bundle is not None else policy_of(config, node)
        yield BenchRun(Controller(node, config, policy, ring, state, stop), publisher, stop)
