"""Everything around one controller: folders, the ring, the publisher beside it, privileges, the control thread."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from slicepilot.agents.base import Agent
from slicepilot.configs import ConfigError, FailureError
from slicepilot.controller.contracts.modes import MODES, Mode
from slicepilot.controller.loop.loop import LoopReport, Watcher
from slicepilot.controller.loop.node import Node
from slicepilot.controller.publisher.handle import Publisher, PublisherOptions
from slicepilot.controller.record.ring import TickRing
from slicepilot.controller.system import privileges, sd_notify
from slicepilot.controller.system.confinement import OFF, confine_controller
from slicepilot.controller.system.realtime import ThreadBesideTheLoop
from slicepilot.controller.system.signals import StopRequest
from slicepilot.controller.watchdog.lock import Locks

from .control_thread import BY_SIGNAL, ControlThread
from .controller import Controller
from .evidence_thread import EvidenceThread
from .mode_switch import controlled_slices
from .run_config import RunConfig

PERIODIC_TASK_S = 1.0
SWITCH_INTERVAL_S = 0.0002
"""How long another Python thread may keep the loop's waiting; CPython's own 5 ms are more than a budget."""


def serve(
    node: Node,
    config: RunConfig,
    seed: int = 0,
    max_ticks: int | None = None,
    force: bool = False,
    watch: Watcher | None = None,
    agent: Agent | None = None,
) -> LoopReport:
    """Run a controller until it is stopped; the caller closes the node's backend. ``agent`` decides in place of
    the configured one.

    Capabilities belong to threads, and onnxruntime starts one when it is imported: that has to come after they are
    given up, and so does the policy.

    Raises:
        ConfigError: bad settings, a policy that may not act, or another controller of this instance runs.
        ActuatorError: see `Controller.run`.
    """
    if config.bundle is not None and config.agent is not None:
        raise ConfigError("bundle, agent: accepted: one of them at most")
    controlled_slices(MODES[config.mode], config.canary, node.backend.slices.names)
    if config.cpu is not None and config.cpu not in (cpus := os.sched_getaffinity(0)):
        raise ConfigError(f"cpu = {config.cpu}; accepted: one of {', '.join(map(str, sorted(cpus)))}")
    instance = config.instance or node.name
    folder, state = Path(config.run_root) / instance, Path(config.state_root) / instance
    with contextlib.ExitStack() as undo:
        _make("run_root", folder)
        _make("state_root", state)
        undo.enter_context(Locks({f"controller {instance}": folder}))
        ring = TickRing(folder / "ticks", len(node.backend.slices))
        undo.callback(ring.close)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        publisher = Publisher.start(_options(config, folder, state), theirs)
        undo.callback(publisher.stop)
        # A testbed of one's own goes at the end, groups of our own come and go, and not even its owner may write to the
        # root of the cgroups.
        makes_groups = config.scenario is not None or node.housing is not None
        privileges.keep_only([*privileges.LOOP, *(["CAP_DAC_OVERRIDE"] if makes_groups else [])])
        with _kept_for_later(BY_SIGNAL):
            controller = _operation(node, config, ring, state, watch, seed, force, agent)
            control = undo.enter_context(ControlThread(controller, ours))
        companions = _Companions(publisher, control)
        controller.notes.append(companions.notes)
        undo.enter_context(_evidence(controller, ring, state))
        controller.loop.periodic_tasks.add(companions.look_after, PERIODIC_TASK_S)
        undo.enter_context(_signs_of_life(controller))
        undo.enter_context(_quick_threads())
        # Last of all: the filter is for what comes now, and all threads that there are follow.
        confined = confine_controller(config.scenario is not None) if config.harden else OFF
        controller.notes.append(lambda: {"confined": confined})
        return controller.run(max_ticks, force)


def _operation(
    node: Node,
    config: RunConfig,
    ring: TickRing,
    state: Path,
    watch: Watcher | None,
    seed: int,
    force: bool,
    agent: Agent | None,
) -> Controller:
    from .loaded_policy import LoadedPolicy, import_bundle_runtime, policy_of

    import_bundle_runtime(node.backend.slices, node.backend.context)
    policy = policy_of(config, node) if agent is None else LoadedPolicy(agent)
    if MODES[config.mode] is not Mode.SHADOW:
        policy.require_promoted_as_loaded(force)
    return Controller(node, config, policy, ring, state, StopRequest(), watch, seed)


def _evidence(controller: Controller, ring: TickRing, state: Path) -> EvidenceThread:
    def failed(what: str) -> None:
        controller.loop.report.last_error = what

    try:
        return EvidenceThread(ring, state, failed)
    except OSError as error:
        raise FailureError(f"evidence for a promotion in {state}: {error.strerror or error}") from error


class _Companions:
    """The publisher, started again when it has ended."""

    def __init__(self, publisher: Publisher, control: ControlThread) -> None:
        self._publisher, self._control = publisher, control
        self._restarts = 0
        self._restarting: threading.Thread | None = None

    def look_after(self) -> None:
        """Between ticks; starting a process takes longer than there is, so a thread does it."""
        busy = self._restarting is not None and self._restarting.is_alive()
        if not busy and not self._publisher.alive():
            self._restarting = ThreadBesideTheLoop(self._restart, "publisher")
            self._restarting.start()

    def notes(self) -> dict[str, object]:
        return {"publisher_restarts": self._restarts}

    def _restart(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            restarted = self._publisher.restart(theirs)
        except OSError:  # no memory, no processes: tried again
            restarted = False
        if restarted:
            self._control.connect(ours)
            self._restarts += 1
        else:
            ours.close()
            theirs.close()


@contextlib.contextmanager
def _kept_for_later(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Keep signals until this ends, when there is a handler for them. Where it fails they are dropped, and what has
    been made is undone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    except BaseException:
        while signal.sigtimedwait(numbers, 0) is not None:
            pass
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _signs_of_life(controller: Controller) -> Iterator[None]:
    """Notify a service manager about once a second that there are ticks: in the loop, or where those are further apart,
    from a thread, which a loop with such a period does not notice."""

    def notify() -> None:
        if controller.ticking():
            sd_notify.watchdog()

    if controller.node.backend.context.period_s.item() <= PERIODIC_TASK_S:
        controller.loop.periodic_tasks.add(notify, PERIODIC_TASK_S)
        yield
        return
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(PERIODIC_TASK_S):
            notify()

    thread = threading.Thread(target=run, name="signs of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _options(config: RunConfig, folder: Path, state: Path) -> PublisherOptions:
    return PublisherOptions(run=folder, state=state, off_cpu=config.cpu, harden=config.harden, **asdict(config.publish))


def _make(root: str, folder: Path) -> None:
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)  # whatever the umask: only root writes there
    except OSError as error:
        raise ConfigError(f"{root} = {folder.parent}: {error.strerror}; expected a writable folder") from error


@contextlib.contextmanager
def _quick_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
