"""Everything around one controller: folders, the ring, the publisher beside it, privileges, the control thread."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from slicepilot.agents.base import Agent
from slicepilot.configs import ConfigError, FailureError
from slicepilot.controller.contracts.modes import MODES, Mode
from slicepilot.controller.loop.loop import LoopReport, Watcher
from slicepilot.controller.loop.node import Node
from slicepilot.controller.publisher.handle import Publisher, PublisherOptions
from slicepilot.controller.record.ring import TickRing
from slicepilot.controller.system import privileges
from slicepilot.controller.system.confinement import OFF, confine_controller
from slicepilot.controller.system.realtime import ThreadBesideTheLoop
from slicepilot.controller.system.signals import StopRequest
from slicepilot.controller.watchdog.lock import Locks

from .control_thread import BY_SIGNAL, ControlThread
from .controller import Controller
from .evidence_thread import EvidenceThread
from .mode_switch import controlled_slices
from .run_config import RunConfig

HOUSEKEEPING_S, FIRST_TICK_S = 1.0, 0.02
SWITCH_INTERVAL_S = 0.0002
"""Longest time that another Python thread delays the loop's; CPython's default of 5 ms exceeds a budget."""


def serve(
    node: Node,
    config: RunConfig,
    seed: int = 0,
    max_ticks: int | None = None,
    force: bool = False,
    watch: Watcher | None = None,
    agent: Agent | None = None,
    say: Callable[[str], None] = lambda _: None,
    stop: StopRequest | None = None,
) -> LoopReport:
    """Run a controller until it is stopped; the caller closes the node's backend.

    ``agent`` replaces the configured agent, and ``say`` hears what is done before the first tick: on a busy node that
    takes half a minute. ``stop`` ends it from outside, as a signal does.

    Capabilities belong to threads, and onnxruntime starts a thread when it is imported: it is imported, and the policy
    loaded, after capabilities were given up.

    Raises:
        ConfigError: bad settings, a policy that may not act, a node on which nothing may act yet, or another controller
            of this instance runs.
        ActuatorError: see `Controller.run`.
    """
    if config.bundle is not None and config.agent is not None:
        raise ConfigError("bundle, agent: both are given; expected one of them")
    controlled_slices(MODES[config.mode], config.canary, node.backend.slices.names)
    if node.unfinished:
        if MODES[config.mode] is not Mode.SHADOW:
            node.require_finished(force)
        say(f"warning: {node.unfinished}, before anything acts on it")
    if config.cpu is not None and config.cpu not in (cpus := os.sched_getaffinity(0)):
        raise ConfigError(f"cpu = {config.cpu}; expected one of {', '.join(map(str, sorted(cpus)))}")
    instance = config.instance or node.name
    folder, state = config.make_folders(instance)
    with contextlib.ExitStack() as undo:
        undo.enter_context(Locks({f"controller {instance}": folder}))
        compiles = "a first start compiles for half a minute of CPU time"
        say(f"starting {config.mode} on {len(node.backend.slices)} slices; {compiles}")
        ring = TickRing(folder / "ticks", len(node.backend.slices))
        undo.callback(ring.close)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = vars(config.publish)
        options = PublisherOptions(run=folder, state=state, off_cpu=config.cpu, harden=config.harden, **given)
        if MODES[config.mode] is Mode.LIVE:  # the simulator is compiled for estimates, beside the UPFs
            options = dataclasses.replace(options, estimate_s=0.0)
        publisher = Publisher.start(options, theirs)
        undo.callback(publisher.stop)
        # A scenario's testbed and UPFs' own groups are removed at the end, and root needs this to write to the root of
        # the cgroups.
        makes_groups = config.scenario is not None or node.housing is not None
        privileges.keep_only([*privileges.LOOP, *(["CAP_DAC_OVERRIDE"] if makes_groups else [])])
        say("loading the policy and trying it")
        with _kept_for_later(BY_SIGNAL):
            from .loaded_policy import LoadedPolicy, import_bundle_runtime, policy_of

            import_bundle_runtime(node.backend.slices, node.backend.context)
            policy = policy_of(config, node) if agent is None else LoadedPolicy(agent)
            if MODES[config.mode] is not Mode.SHADOW:
                policy.require_promoted_as_loaded(force)
            controller = Controller(node, config, policy, ring, state, stop, watch, seed)
            control = undo.enter_context(ControlThread(controller, ours))
        try:
            undo.enter_context(EvidenceThread(ring, state, partial(setattr, controller.loop.report, "last_error")))
        except OSError as error:
            raise FailureError(f"evidence for a promotion in {state}: {error.strerror or error}") from error
        undo.enter_context(_housekeeping(controller, publisher, control))
        undo.enter_context(_quick_threads())
        # Last, because all running threads are confined, too.
        confined = confine_controller(config.scenario is not None) if config.harden else OFF
        controller.notes.append(lambda: {"confined": confined})
        say("taking over")
        return controller.run(max_ticks, force)


@contextlib.contextmanager
def _housekeeping(controller: Controller, publisher: Publisher, control: ControlThread) -> Iterator[None]:
    """About once a second, in a thread: notify the service manager, and start a publisher that has ended again."""
    ended, restarts = threading.Event(), 0
    controller.notes.append(lambda: {"publisher_restarts": restarts})

    def run() -> None:
        nonlocal restarts
        while not ended.wait(HOUSEKEEPING_S if controller.begun else FIRST_TICK_S):
            controller.notify()
            if not publisher.alive():
                restarts += _restart(publisher, control)

    thread = ThreadBesideTheLoop(run, "housekeeping")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _restart(publisher: Publisher, control: ControlThread) -> bool:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        restarted = publisher.restart(theirs)
    except OSError:  # no memory, no processes: tried again
        restarted = False
    if restarted:
        control.connect(ours)
    else:
        ours.close()
        theirs.close()
    return restarted


@contextlib.contextmanager
def _kept_for_later(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Keep signals until the end, when there is a handler for them; on failure they are dropped."""
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
def _quick_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
