"""A node for callers that step it themselves: environments, recordings, identification.

In mode ``live`` guard, locks, journal and supervisor protect every step, as with a controller. If the caller takes no
step for a while (a learner at its update, a debugger), the knobs go back to the original settings until the next step.
"""

from __future__ import annotations

import contextlib
import threading
import time

from slicepilot.configs import ConfigError
from slicepilot.controller.guard.backend import GuardedBackend
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.loop.node import Node
from slicepilot.controller.record.ring import TickRing
from slicepilot.controller.service.knob_lease import KnobLease
from slicepilot.controller.service.run_config import DEFAULT_PERIOD_S, RunConfig
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.realtime import ThreadBesideTheLoop
from slicepilot.controller.telemetry.source import KernelSource
from slicepilot.controller.watchdog.lock import Locks
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Receipt
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import Telemetry
from slicepilot.node.config.spec import NodeSpec
from slicepilot.node.find.locate import Located

from .backend import NodeBackend, node_of

BEAT_S = 0.1
CHECK_S = 1.0
IDLE_S, IDLE_PERIODS = 2.0, 5
HANG_S = 30.0
"""A compiler may keep Python's threads from running for seconds; so this is longer than a controller's."""


class GuardedNode(GuardedBackend):
    """Knobs under a guard, by the machine's clock. Runs start from the original settings, and closing restores them.

    Args:
        node: with a read-only actuator; its backend is owned.
        settings: guard, supervision, folder of the journal.

    Attributes:
        ticks: how many periods were missed.
        error: what went wrong between steps, the latest.

    Raises:
        ConfigError: another controller has one of the slices, or a guard that does not fit.
        ActuatorError: journal or knobs cannot be written; nothing has been changed.
    """

    def __init__(self, node: Node, settings: RunConfig) -> None:
        backend = node.backend
        assert isinstance(backend, NodeBackend)
        super().__init__(backend, GuardConfig.from_yaml(settings.guard))
        self._live, self.ticks, self.hardware = backend, backend.ticks, node.hardware
        self._idle_s = max(IDLE_S, IDLE_PERIODS * float(self.context.period_s[0]))
        self._hands, self._ended = threading.Lock(), threading.Event()
        self._stepped_s, self._moved = 0.0, False
        self.error: str | None = None
        watchdog = {"hang_s": max(HANG_S, settings.watchdog.hang_s)}
        instance = settings.instance or f"{node.name}-stepped"
        with contextlib.ExitStack() as undo:
            undo.callback(self._live.close)
            folder, state = settings.make_folders(instance)
            undo.enter_context(Locks({f"controller {instance}": folder}))
            # Not called as a controller's ring is: it has no ticks to show.
            self._ring = TickRing(folder / "beat", len(self.slices))
            undo.callback(self._ring.close)
            self._lease = KnobLease(node.targets, node, settings.override(watchdog=watchdog), state, self._ring.path)
            undo.callback(self._lease.give_back)
            self._live.use(self._lease.actuator).close()
            self._original = self._live.receipt.applied
            self._undo = undo.pop_all()
        self._keeper = ThreadBesideTheLoop(self._keep, "keeper")
        self._keeper.start()

    @property
    def located(self) -> dict[str, Located]:
        """Location of each slice's UPF."""
        return self._live.located

    @property
    def source(self) -> KernelSource:
        """The source of measurements."""
        return self._live.source

    @property
    def receipt(self) -> Receipt:
        """The knobs that hold."""
        return self._live.receipt

    def reset(self, seed: int | None = None) -> Telemetry:
        """Start a run from the original settings, under a guard that remembers nothing; raises ConfigError."""
        with self._hands:
            self._live.apply(self._original)
            self._moved, self._periods = False, 0
            self._telemetry = self._live.start(seed)
            self._guard = self._new_guard()
        return self._telemetry

    def apply(self, knobs: Knobs) -> Receipt:
        """Set what the guard lets through of the knobs that act; raises RuntimeError before `reset`."""
        with self._hands:
            self._held, moves = self._live.receipt.applied, self.context.moves
            self._stepped_s, self._moved = time.monotonic(), True
            return super().apply(knobs if moves is None else knobs.only(moves, self._held))

    def deploy(self, request_mcpu: FloatArray | None) -> None:
        """See `LiveBackend.deploy`."""
        with self._hands:
            self._live.deploy(request_mcpu)

    def observe(self) -> Telemetry:
        """Wait for the next tick, then measure."""
        self._live.wait()
        with self._hands:
            self._stepped_s = time.monotonic()
            self._telemetry = self._live.measure()
        return self._telemetry

    def real_time(self) -> contextlib.AbstractContextManager[object]:
        """Inside, this thread is scheduled as the controller's loop is."""
        return self._live.real_time()

    def close(self) -> None:
        """Put the knobs back and release everything; more than once does nothing. Raises ActuatorError."""
        self._ended.set()
        self._keeper.join()
        self._undo.close()

    def _now_ns(self) -> int:
        return time.monotonic_ns()

    def _keep(self) -> None:
        """The supervisor hears that this process lives; between steps knobs and UPFs are looked after."""
        checked_s = 0.0
        while not self._ended.wait(BEAT_S):
            self._ring.beat()
            if not self._hands.acquire(blocking=False):
                continue
            try:
                now_s = time.monotonic()
                if self._moved and now_s - self._stepped_s > self._idle_s:
                    self._live.apply(self._original)
                    self._moved = False
                if now_s - checked_s > CHECK_S:
                    checked_s = now_s
                    self._live.check()
                    self._lease.look_after()
            except (ActuatorError, OSError) as error:
                self.error = str(error)
            finally:
                self._hands.release()


def open_live(
    name: str,
    control_period_s: float | None = None,
    *,
    mode: str = "shadow",
    seconds: float | None = None,
    run: str = "default",
) -> NodeBackend | GuardedNode:
    """A node to step.

    Args:
        name: name or file of its configuration.
        control_period_s: none is 10 ms.
        mode: shadow, which writes nothing, or live.
        seconds: of a run; none: endless.
        run: name or file of the run configuration: guard, supervision, folder of the journal.

    Raises:
        ConfigError: see `NodeBackend` and `GuardedNode`; an unknown mode.
        ProbeError, ActuatorError: what is needed is missing.
    """
    if mode not in {"shadow", "live"}:
        raise ConfigError(f"mode = {mode!r}; expected shadow, live")
    settings, period_s = RunConfig.from_yaml(run), control_period_s or DEFAULT_PERIOD_S
    steps = {} if seconds is None else {"num_steps": max(1, round(seconds / period_s))}
    backend = NodeBackend(NodeSpec.from_yaml(name), period_s, **steps)
    return GuardedNode(node_of(backend), settings) if mode == "live" else backend
