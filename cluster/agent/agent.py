"""The agent of a node: SliceSets and pods in, loops and status out.

The main thread plans and looks after the loops, and waits for no answer: where the API server is away, loops that run
are looked after nevertheless. A thread of its own writes and renews Leases, one each watches, one fetches.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.client.lease import Lease
from slicepilot.cluster.client.reflector import Reflector, Source
from slicepilot.cluster.fetch.fetcher import Fetcher
from slicepilot.cluster.fetch.image import Registries
from slicepilot.cluster.fetch.store import Store
from slicepilot.cluster.loops.keeper import Keeper
from slicepilot.cluster.metrics.handle import MetricsServer
from slicepilot.cluster.plan.allowance import Allowance, Allowing
from slicepilot.cluster.plan.plan import Planner, SetPlan
from slicepilot.cluster.resources.names import SLICE_SETS, SUMMARY, path
from slicepilot.cluster.resources.pod import Pod
from slicepilot.cluster.slow.following import followed, told
from slicepilot.cluster.slow.tier import SlowTier
from slicepilot.cluster.status.events import Events
from slicepilot.cluster.status.report import report
from slicepilot.cluster.status.summary import Summary
from slicepilot.cluster.status.writer import Writer
from slicepilot.controller.publisher.listeners import HttpAddress
from slicepilot.controller.system.signals import StopRequest

from .place import AgentPlace
from .telling import Telling

STEP_S = 0.25
LOOK_S = 1.0
LAST_WORD_S = 3.0
GIVE_BACK_S = 8.0
TOLD_AGAIN_S = 60.0
SUMMARY_POLL_S = 60.0
"""All nodes but one ask in vain who sums up."""


@dataclass(frozen=True)
class AgentConfig:
    """Of one agent.

    Attributes:
        node: its node's name in the cluster.
        namespace: where its Leases are.
        run_root, state_root: where loops have their sockets, and their journals and records.
        allowance: what SliceSets may ask for.
        registries: that bundles may be had from.
        trust: public key (PEM) that bundles which are fetched have to be signed with; None: they need not be.
        metrics: where they are served; None: nowhere.
    """

    node: str
    namespace: str = "slicepilot-system"
    run_root: Path = Path("/run/slicepilot")
    state_root: Path = Path("/var/lib/slicepilot")
    allowance: Allowance = field(default_factory=Allowance)
    registries: Registries = field(default_factory=Registries)
    trust: Path | None = None
    metrics: HttpAddress | None = None


class Agent:
    """One.

    Args:
        api: the API server.
        config: whose.
        stop: ends it.
    """

    def __init__(self, api: Api, config: AgentConfig, stop: StopRequest) -> None:
        self._api, self._config, self._stop = api, config, stop
        self._place = AgentPlace(config.run_root / "agent")
        self._changed = threading.Event()
        self._troubles: dict[str, float] = {}
        self._telling = Telling(None, api, config.node)

    def run(self) -> None:
        """Until it is stopped. While another agent acts for the node it waits."""
        with contextlib.closing(self._place):
            if not self._wait(self._place.take, "another agent has this machine's place"):
                return
            with contextlib.ExitStack() as stack:
                if (address := self._config.metrics) is not None:
                    server = stack.enter_context(contextlib.closing(MetricsServer(address)))
                    self._telling = Telling(server, self._api, self._config.node)
                self._take_turns()

    def _take_turns(self) -> None:
        """Act whenever the node's Lease is ours."""
        lease = Lease(self._api, self._config.namespace, f"slicepilot-{self._config.node}", self._identity)
        while not self._stop.asked:
            if not self._wait(lambda: self._try(lease), "another agent holds the node's Lease"):
                return
            _log("acting", node=self._config.node, identity=self._identity)
            self._act(lease)
            if not self._stop.asked:
                _log("the Lease was lost", holder=lease.holder)

    @property
    def _identity(self) -> str:
        return f"{self._config.node}_{self._place.name()}"

    def _wait(self, ready: Callable[[], bool], why: str) -> bool:
        """Whether it has become so; not if it was asked to stop."""
        told = False
        while not self._stop.asked:
            if ready():
                return True
            if not told:
                _log("waiting", why=why)
                told = True
            self._telling.step()
            time.sleep(STEP_S)
        return False

    def _try(self, lease: Lease) -> bool:
        try:
            lease.step(time.monotonic())
        except ApiError as error:
            self._trouble(str(error))
        return lease.held

    def _act(self, lease: Lease) -> None:
        """Run loops while the node is ours."""
        config = self._config
        slice_sets = self._reflector(Source(path(SLICE_SETS), {}))
        pods = self._reflector(Source("/api/v1/pods", {"fieldSelector": f"spec.nodeName={config.node}"}), Pod.of)
        node = self._reflector(
            Source("/api/v1/nodes", {"fieldSelector": f"metadata.name={config.node}"}, metadata_only=True),
            lambda one: one["metadata"].get("labels") or {},
        )
        events = Events(self._api, config.node)
        writer = Writer(self._api, config.node, events)
        slow = SlowTier(self._api, config.node, config.state_root)
        office = _Office(self, lease, writer, events, slice_sets, slow)
        store = Store(config.state_root, config.trust)
        fetcher = Fetcher(self._api, config.registries, store, self._changed.set, self._failed)
        roots, metrics = (config.run_root, config.state_root), config.metrics is not None
        keeper = Keeper(self._place.folder, roots, config.allowance.records_mb, _log_of, pages=metrics)
        self._telling.lists(slicesets=slice_sets, pods=pods, nodes=node)
        try:
            for one in (slice_sets, pods, node):
                one.start()
            keeper.restore()
            office.start()
            fetcher.start()
            planner, allowing = Planner(config.allowance.highest_mode, config.trust), Allowing(config.allowance)
            looked_s = 0.0
            plans: list[SetPlan] = []
            while not self._stop.asked and lease.held:
                self._telling.step(lease.held, office.sums_up)
                changed = self._changed.wait(STEP_S)
                self._changed.clear()
                now_s, labels = time.monotonic(), node.objects()
                if not (slice_sets.synced and pods.synced and labels):
                    continue
                if looks := now_s - looked_s >= LOOK_S:
                    looked_s = now_s
                    keeper.look()
                if changed or looks:
                    found = planner.plan(slice_sets.objects(), pods.objects(), labels[0], now_s, fetcher.found)
                    fetcher.post(planner.wanted, pods.objects(), planner.used)
                    plans = allowing.hold(found)
                keeper.follow(plans, now_s)
                if changed or looks:
                    slow.post(followed(plans, keeper.states), pods.objects())
                    self._post(writer, keeper, told(plans, slow.troubles))
                    self._place.tell_ready()
        finally:
            self._place.tell_ready(False)
            fetcher.close()
            self._telling.lists()
            keeper.close()
            office.close()
            for one in (slice_sets, pods, node):
                one.close()

    def _post(self, writer: Writer, keeper: Keeper, plans: list[SetPlan]) -> None:
        reports = {plan.who.uid: report(plan, keeper.states.get(plan.who.uid)) for plan in plans}
        writer.post({plan.who.uid: (plan.who, reports[plan.who.uid]) for plan in plans})
        self._telling.found(plans, reports, keeper.states)

    def _reflector(self, source: Source, keep: Callable[[dict[str, Any]], Any] = lambda one: one) -> Reflector:
        return Reflector(self._api, source, self._changed.set, keep, self._failed)

    def _failed(self, text: str, wait_s: float) -> None:
        self._trouble(text, again_s=round(wait_s, 1))

    def _trouble(self, text: str, **more: Any) -> None:
        """Tell of a failure, of the same one once a minute."""
        now_s = time.monotonic()
        if now_s - self._troubles.get(text, -TOLD_AGAIN_S) >= TOLD_AGAIN_S:
            self._troubles = {key: at_s for key, at_s in self._troubles.items() if now_s - at_s < TOLD_AGAIN_S}
            self._troubles[text] = now_s
            _log(text, level="warning", **more)


class _Office:
    """The thread that writes to the API server, and holds the Leases."""

    def __init__(
        self, agent: Agent, lease: Lease, writer: Writer, events: Events, slice_sets: Reflector, slow: SlowTier
    ) -> None:
        self._agent, self._lease, self._writer, self._events, self._slow = agent, lease, writer, events, slow
        api, config = agent._api, agent._config
        self._summing = Lease(api, config.namespace, SUMMARY, agent._identity, poll_s=SUMMARY_POLL_S)
        self._summary = Summary(api, slice_sets.objects, self.wake, agent._failed)
        self._slice_sets = slice_sets
        self._woken, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="office", daemon=True)

    @property
    def sums_up(self) -> bool:
        """Whether this agent sums up for all nodes."""
        return self._summing.held

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """There is something to do."""
        self._woken.set()

    def close(self) -> None:
        """End, and let go of the Leases. An answer that is on its way is waited for, for a while, and so are pods that
        are to have theirs back: where an installation is taken away, nobody else will do it."""
        until_s = time.monotonic() + GIVE_BACK_S
        while self._thread.is_alive() and self._slow.owes and time.monotonic() < until_s:
            time.sleep(STEP_S)
        self._ended.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(LAST_WORD_S)
        self._summary.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._woken.wait(STEP_S)
            self._woken.clear()
            now_s = time.monotonic()
            steps = (
                self._lease.step,
                self._slow.step,
                self._writer.step,
                self._events.step,
                self._summing.step,
                self._sum,
            )
            for step in steps:
                try:
                    step(now_s)
                except ApiError as error:
                    self._agent._trouble(str(error))
        for lease in (self._summing, self._lease):
            lease.release()

    def _sum(self, now_s: float) -> None:
        self._summary.step(now_s, self._summing.held and self._slice_sets.synced)


def _log_of(loop: str, text: str) -> None:
    """A line of a loop's: its own logs are JSON, errors are text, and its publisher may write anything."""
    try:
        facts = json.loads(text)
        if isinstance(facts, dict) and isinstance(facts.get("event"), str):
            event = facts.pop("event")
            _log(event, loop=loop, **{key: value for key, value in facts.items() if key not in {"loop", "time"}})
            return
    except (ValueError, RecursionError):  # so deep that it cannot be read, or not be written
        pass
    _log(text, loop=loop)


def _log(event: str, **facts: Any) -> None:
    """A line of JSON on standard error."""
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **facts}
    with contextlib.suppress(OSError):
        print(json.dumps(line), file=sys.stderr, flush=True)
