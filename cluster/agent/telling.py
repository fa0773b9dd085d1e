"""What an agent gives the process that serves metrics to know, about once a second."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterable, Mapping
from importlib import metadata

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.reflector import Reflector
from slicepilot.cluster.loops.keeper import LoopState
from slicepilot.cluster.metrics.figures import AgentFacts, ListFacts, LoopFacts
from slicepilot.cluster.metrics.handle import MetricsServer
from slicepilot.cluster.plan.plan import SetPlan
from slicepilot.cluster.status.conditions import READY
from slicepilot.cluster.status.report import Report
from slicepilot.controller.publisher.listeners import LOCAL_SOCKET

TELL_S = 1.0


class Telling:
    """To be used from the main thread alone.

    Args:
        server: None: nobody is told.
        api: whose requests are counted.
        node: its name.
    """

    def __init__(self, server: MetricsServer | None, api: Api, node: str) -> None:
        self._server, self._api, self._node = server, api, node
        self._started_s, self._told_s = time.time(), float("-inf")
        self._version = ""
        with contextlib.suppress(metadata.PackageNotFoundError):
            self._version = metadata.version("slicepilot")
        self._lists: tuple[tuple[str, Reflector], ...] = ()
        self._slice_sets: dict[str, int] = {}
        self._loops: tuple[LoopFacts, ...] = ()

    def lists(self, **reflectors: Reflector) -> None:
        """Which lists there are, by what they are called; none: nothing is known of any SliceSet any more."""
        self._lists = tuple(reflectors.items())
        self._slice_sets, self._loops = {}, ()

    def found(self, plans: Iterable[SetPlan], reports: Mapping[str, Report], states: Mapping[str, LoopState]) -> None:
        """What has become of SliceSets: plans, and by uid what is said of each and how its loop is."""
        self._slice_sets = dict(
            collections.Counter(
                one.reason for report in reports.values() for one in report.conditions if one.type == READY
            )
        )
        self._loops = tuple(_loop(plan, states[plan.who.uid]) for plan in plans if plan.who.uid in states)

    def step(self, lease_held: bool = False, sums_up: bool = False) -> None:
        """Tell, where it is time."""
        now_s = time.monotonic()
        if self._server is None or now_s - self._told_s < TELL_S:
            return
        self._told_s = now_s
        self._server.tell(
            AgentFacts(
                node=self._node,
                version=self._version,
                started_s=self._started_s,
                time_s=time.time(),
                lease_held=lease_held,
                sums_up=sums_up,
                requests=self._api.counted(),
                slice_sets=self._slice_sets,
                lists=tuple(ListFacts(name, one.lists, one.watches, one.heard_s) for name, one in self._lists),
                loops=self._loops,
            ),
            now_s,
        )


def _loop(plan: SetPlan, state: LoopState) -> LoopFacts:
    process = state.process
    where = str(process.ring.with_name(LOCAL_SOCKET)) if process is not None and process.ending_s is None else ""
    return LoopFacts(state.instance, plan.who.name, plan.who.namespace, where, state.starts, state.failures)
