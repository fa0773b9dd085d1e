"""One loop: ``slicepilot run`` as a child."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from slicepilot.cluster.plan.plan import LoopPlan
from slicepilot.configs import ConfigError
from slicepilot.configs.text import printable
from slicepilot.controller.service.control_client import ControlClient, ControlError
from slicepilot.controller.system.own_programs import start
from slicepilot.data.files import replace_file

ORDER_S, ORDER_AGAIN_S = 10.0, 5.0
"""Longest time of an order, and the wait before a refused order is repeated."""
END_S = 20.0
"""After SIGTERM; then it is killed, and its supervisor restores the knobs."""
LINES = 5
LINE_BYTES = 1 << 16
"""Longer lines are split."""


class LoopProcess:
    """One running loop; the constructor starts it.

    Args:
        plan: its configuration.
        folder: of its configuration files.
        roots: folders of its sockets, and of its journal.
        publish: settings of its publisher (`slicepilot.controller.publisher.handle.PublishConfig`).
        log: called with each line that it prints.

    Attributes:
        plan: with the mode that was last ordered.
        refused: why it has refused a mode.
    """

    def __init__(
        self,
        plan: LoopPlan,
        folder: Path,
        roots: tuple[Path, Path],
        publish: Mapping[str, Any],
        log: Callable[[str], None],
    ) -> None:
        self.plan, self._log = plan, log
        self.refused: str | None = None
        self.started_s = time.monotonic()
        self.ending_s: float | None = None
        self._run_root = roots[0]
        self._lines: collections.deque[str] = collections.deque(maxlen=LINES)
        self._order: threading.Thread | None = None
        self._order_again_s = 0.0
        node, run = folder / f"{plan.instance}.node.yaml", folder / f"{plan.instance}.run.yaml"
        settings = {
            **plan.run,
            "node": str(node),
            "instance": plan.instance,
            "mode": plan.mode,
            "canary": list(plan.canary),
            "publish": dict(publish),
            "watchdog": {"leave_groups": True},
            "run_root": str(roots[0]),
            "state_root": str(roots[1]),
        }
        for path, document in ((node, dict(plan.node)), (run, settings)):
            replace_file(path, yaml.safe_dump(document, sort_keys=False).encode())
        arguments = (str(os.getpid()), "run", "-c", str(run))
        self._process = start(f"{__package__}.child", *arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self._reading = threading.Thread(target=self._read, name=f"log {plan.instance}", daemon=True)
        try:
            self._reading.start()
        except RuntimeError:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ring(self) -> Path:
        return self._run_root / self.plan.instance / "ticks"

    def ended(self) -> int | None:
        """Its exit code once it has ended; kills it where it does not end within `END_S`."""
        code = self._process.poll()
        if code is None and self.ending_s is not None and time.monotonic() - self.ending_s > END_S:
            self._process.kill()
        return code

    def why(self) -> str:
        """The last error that it printed, in a line."""
        self._reading.join(1.0)
        lines = [*self._lines]  # a copy: other processes with the loop's standard error may still write
        errors = [line for line in lines if "error:" in line] or lines
        return errors[-1].partition("error: ")[2] or errors[-1] if errors else f"exit code {self._process.returncode}"

    def stop(self) -> None:
        """Send SIGTERM, upon which it restores the knobs."""
        if self.ending_s is None:
            self.ending_s = time.monotonic()
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Wait until it has ended; kill it if it has not in time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def keep_mode(self, plan: LoopPlan) -> None:
        """Order the plan's mode, in a thread of its own because taking over knobs takes a while.

        Nothing is ordered where that was the last order and none was refused since: an order that was not answered may
        have been carried out.
        """
        if self.plan.acts_as(plan) and self.refused is None:
            return
        now_s = time.monotonic()
        if (self._order is not None and self._order.is_alive()) or now_s < self._order_again_s:
            return
        self._order_again_s = now_s + ORDER_AGAIN_S
        self._order = threading.Thread(target=self._order_mode, args=(plan,), name=f"mode {plan.instance}", daemon=True)
        try:
            self._order.start()
        except RuntimeError:  # no threads left: tried again
            self._order = None

    def _order_mode(self, plan: LoopPlan) -> None:
        order = {"command": "mode", "mode": plan.mode, **({"slices": list(plan.canary)} if plan.canary else {})}
        try:
            with ControlClient(self._run_root / plan.instance / "control.sock", ORDER_S) as client:
                client.request(order)
        except (ConfigError, ControlError) as error:
            self.refused = str(error)
        else:
            self.refused, self.plan = None, plan
            self._order_again_s = 0.0

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            # The publisher writes here too, and is not trusted.
            while line := lines.readline(LINE_BYTES):
                text = printable(line.decode(errors="replace").rstrip())
                if text:
                    self._lines.append(text)
                    self._log(text)
