"""The agent of a node: SliceSets and pods in, loops and status out.

The main thread plans and supervises the loops and waits for no answer: while the API server is away, running loops are
supervised nevertheless. A thread writes to the API server, a thread for each list watches it, and a thread fetches
bundles."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.client.lease import Lease
from slicepilot.cluster.client.reflector import Reflector, Source
from slicepilot.cluster.fetch.fetcher import Fetcher
from slicepilot.cluster.fetch.store import Store
from slicepilot.cluster.loops.manager import LoopManager, LoopState
from slicepilot.cluster.metrics.figures import AgentFacts, LoopFacts
from slicepilot.cluster.metrics.handle import MetricsServer
from slicepilot.cluster.plan.allowance import Admission, Allowance
from slicepilot.cluster.plan.plan import Planner, SetPlan
from slicepilot.cluster.podsync.followed import followed_pods, with_troubles
from slicepilot.cluster.podsync.pod_sync import PodSync
from slicepilot.cluster.resources.names import SLICE_SETS, SUMMARY, path
from slicepilot.cluster.resources.pod import Pod
from slicepilot.cluster.status.conditions import READY
from slicepilot.cluster.status.events import Events
from slicepilot.cluster.status.report import Report, report
from slicepilot.cluster.status.status_writer import StatusWriter
from slicepilot.cluster.status.summary import Summary
from slicepilot.controller.publisher.listeners import LOCAL_SOCKET, HttpAddress
from slicepilot.controller.system.signals import StopRequest

from .api_writer import ApiWriter
from .lock import AgentLock
from .log import Warnings, log, log_loop

STEP_S = 0.25
LOOK_S = 1.0
SUMMARY_POLL_S = 60.0
"""All other agents ask for the summary's Lease in vain."""


@dataclass(frozen=True)
class AgentConfig:
    """The configuration of an agent.

    Attributes:
        node: its node's name in the cluster.
        namespace: of its Leases.
        run_root, state_root: folders of the loops' sockets, and of their journals and records.
        allowance: what SliceSets may ask for.
        volumes: folder of mounted volumes with bundles (`slicepilot.cluster.fetch.sources`); None: there are none.
        trust: public key (PEM) that fetched bundles have to be signed with; None: no signature is required.
        metrics: address to serve them on; None: they are not served.
    """

    node: str
    namespace: str = "slicepilot-system"
    run_root: Path = Path("/run/slicepilot")
    state_root: Path = Path("/var/lib/slicepilot")
    allowance: Allowance = field(default_factory=Allowance)
    volumes: Path | None = None
    trust: Path | None = None
    metrics: HttpAddress | None = None


class Agent:
    """The agent of a node.

    Args:
        api: the API server.
        config: its configuration.
        stop: ends it.
    """

    def __init__(self, api: Api, config: AgentConfig, stop: StopRequest) -> None:
        self._api, self._config, self._stop = api, config, stop
        self._lock = AgentLock(config.run_root / "agent")
        self._changed = threading.Event()
        self._warnings = Warnings()
        self._metrics: MetricsServer | None = None
        self._started_s, self._version = time.time(), ""
        with contextlib.suppress(metadata.PackageNotFoundError):
            self._version = metadata.version("slicepilot")

    def run(self) -> None:
        """Run until stopped; waits while another agent acts for the node."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.closing(self._lock))
            if not self._wait(self._lock.acquire, "another agent runs on this machine"):
                return
            if (address := self._config.metrics) is not None:
                self._metrics = stack.enter_context(contextlib.closing(MetricsServer(address)))
            config, identity = self._config, f"{self._config.node}_{self._lock.identity()}"
            lease = Lease(self._api, config.namespace, f"slicepilot-{config.node}", identity)
            while self._wait(lambda: self._acquire(lease), "another agent holds the node's Lease"):
                log("acting", node=config.node, identity=identity)
                self._act(lease, identity)
                if not self._stop.requested:
                    log("the Lease was lost", holder=lease.holder)

    def _wait(self, ready: Callable[[], bool], why: str) -> bool:
        """Wait until ready; returns False if the agent is stopped before."""
        logged = False
        while not self._stop.requested:
            if ready():
                return True
            if not logged:
                log("waiting", why=why)
                logged = True
            self._report_metrics()
            time.sleep(STEP_S)
        return False

    def _acquire(self, lease: Lease) -> bool:
        try:
            lease.step(time.monotonic())
        except ApiError as error:
            self._warnings.warn(str(error))
        return lease.held

    def _act(self, lease: Lease, identity: str) -> None:
        """Run loops while the node's Lease is held."""
        config = self._config
        lists = {
            "slicesets": self._reflector(Source(path(SLICE_SETS), {})),
            "pods": self._reflector(Source("/api/v1/pods", {"fieldSelector": f"spec.nodeName={config.node}"}), Pod.of),
            "nodes": self._reflector(
                Source("/api/v1/nodes", {"fieldSelector": f"metadata.name={config.node}"}, metadata_only=True),
                lambda document: document["metadata"].get("labels") or {},
            ),
        }
        slice_sets, pods, node = lists.values()
        events = Events(self._api, config.node)
        status = StatusWriter(self._api, config.node, events)
        pod_sync = PodSync(self._api, config.node, config.state_root)
        summing = Lease(self._api, config.namespace, SUMMARY, identity, poll_s=SUMMARY_POLL_S)
        writer = ApiWriter(
            (
                lease.step,
                pod_sync.step,
                status.step,
                events.step,
                summing.step,
                lambda now_s: summary.step(now_s, summing.held and slice_sets.synced),
            ),
            (summing, lease),
            self._warnings.warn,
        )
        summary = Summary(self._api, slice_sets.objects, writer.wake, self._failed)
        store = Store(config.state_root, config.trust)
        fetcher = Fetcher(self._api, config.volumes, store, self._changed.set, self._failed)
        roots, pages = (config.run_root, config.state_root), self._metrics is not None
        loops = LoopManager(self._lock.folder, roots, config.allowance.records_mb, log_loop, pages=pages)
        planner, admission = Planner(config.allowance.highest_mode, config.trust), Admission(config.allowance)
        plans: list[SetPlan] = []
        reports: dict[str, Report] = {}
        looked_s = 0.0
        try:
            for reflector in lists.values():
                reflector.start()
            loops.restore()
            writer.start()
            fetcher.start()
            while not self._stop.requested and lease.held:
                self._report_metrics(lease.held, summing.held, lists, plans, reports, loops.states)
                changed = self._changed.wait(STEP_S)
                self._changed.clear()
                now_s, labels = time.monotonic(), node.objects()
                if not (slice_sets.synced and pods.synced and labels):
                    continue
                if looks := now_s - looked_s >= LOOK_S:
                    looked_s = now_s
                    loops.read()
                if changed or looks:
                    planned = planner.plan(slice_sets.objects(), pods.objects(), labels[0], now_s, fetcher.fetched)
                    fetcher.post(planner.wanted, planner.used)
                    plans = admission.admit(planned)
                loops.reconcile(plans, now_s)
                if changed or looks:
                    pod_sync.post(followed_pods(plans, loops.states), pods.objects())
                    shown = with_troubles(plans, pod_sync.troubles)
                    reports = {plan.identity.uid: report(plan, loops.states.get(plan.identity.uid)) for plan in shown}
                    status.post({plan.identity.uid: (plan.identity, reports[plan.identity.uid]) for plan in shown})
                    self._lock.mark_ready()
        finally:
            self._lock.mark_ready(False)
            fetcher.close()
            loops.close()
            # Pods that are to have their own values back have them before the agent ends: after an uninstallation no
            # other agent would do it.
            writer.close(lambda: pod_sync.restoring)
            summary.close()
            for reflector in lists.values():
                reflector.close()

    def _reflector(self, source: Source, keep: Callable[[dict[str, Any]], Any] = lambda item: item) -> Reflector:
        return Reflector(self._api, source, self._changed.set, keep, self._failed)

    def _failed(self, text: str, wait_s: float) -> None:
        self._warnings.warn(text, again_s=round(wait_s, 1))

    def _report_metrics(
        self,
        lease_held: bool = False,
        sums_up: bool = False,
        lists: dict[str, Reflector] | None = None,
        plans: list[SetPlan] | None = None,
        reports: dict[str, Report] | None = None,
        states: dict[str, LoopState] | None = None,
    ) -> None:
        if self._metrics is None or not self._metrics.due:
            return
        ready = [item.reason for each in (reports or {}).values() for item in each.conditions if item.type == READY]
        known = states or {}
        self._metrics.report(
            AgentFacts(
                node=self._config.node,
                version=self._version,
                started_s=self._started_s,
                time_s=time.time(),
                lease_held=lease_held,
                sums_up=sums_up,
                requests=self._api.counted(),
                slice_sets=dict(collections.Counter(ready)),
                heard_s={name: reflector.heard_s for name, reflector in (lists or {}).items()},
                loops=tuple(
                    _facts(plan, known[plan.identity.uid]) for plan in plans or () if plan.identity.uid in known
                ),
            )
        )


def _facts(plan: SetPlan, state: LoopState) -> LoopFacts:
    process = state.process
    socket = str(process.ring.with_name(LOCAL_SOCKET)) if process is not None and process.ending_s is None else ""
    return LoopFacts(state.instance, plan.identity.name, plan.identity.namespace, socket, state.starts, state.failures)
