"""The loads of Mishra and Pandey (2026) on the UPFs of a local testbed, without control and under a live controller."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from slicepilot.configs import ConfigError, FailureError
from slicepilot.configs.backends import plugin
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.data.files import appended, replace_file
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.studies.study import Effort, Findings, Store

from .samples import (
    CONTROLLER,
    LOADS,
    MATCHED,
    SLICES,
    TRANSACTIONS,
    folder_of,
    kept_cell,
    matched_as_in_the_study,
    write_forwarding,
    write_pfcp,
)
from .simulated import csv_name, players_of, scenario_of, take_cells

TESTBED = "mishra"
RUN_S, QUICK_S = 60.0, 10.0
TCP_SCALE = 1 / 3
"""Of mMTC's rate. UE, server and UPF have two CPUs here, and the study's 20 cores were far from busy."""
SETTLE_S = 1.0  # for TCP to find its rate
READ_S, SESSIONS_PER_S = 0.02, 10.0
MOST_LEFT_OUT = 0.01  # of packets
LAST_S = 1.0  # for the last transactions to be answered
READY_S, STOP_S, LOOK_S = 90.0, 15.0, 0.1  # of a controller
TICKS = 50  # until it counts as acting


def measure(effort: Effort, store: Store) -> Findings:
    """Run all loads without control, then with each controller live; each run is stored as soon as it ends.

    Raises:
        ConfigError: there is no testbed to be had.
        FailureError: a controller did not come up.
    """
    result = Findings(material={"curves": {}})
    players, seconds = players_of(effort), QUICK_S if effort.quick else RUN_S
    done, total = 0, len(LOADS) * len(players)
    with _Testbed() as testbed:
        effort.say("no load", 0.0)
        idle = store.get("idle", lambda: testbed.idle(QUICK_S))
        take_cells(result, {f"idle/{name}": cell for name, cell in idle.items()}, "", "", effort)
        for player, agent in players.items():
            for load in LOADS:
                effort.say(f"{load} load{f', {agent} live' if player else ''}", done / total)
                folder = folder_of(store, f"measured-{agent}" if player else "measured")
                cells = store.get(
                    f"{player}{load}",
                    lambda: testbed.play(load, agent if player else None, seconds, effort.seed, folder),  # noqa: B023
                )
                take_cells(result, cells, load, player, effort)
                done += 1
    result.shown_only = set(result.values)
    waits_us = result.extra["idle/pfcp/modification/p99"].value
    result.remarks.append(
        f"measured: three UPFs of this machine on {len(os.sched_getaffinity(0))} CPUs, shared with what loads and "
        f"measures them, and with other processes (load average {os.getloadavg()[1]:.1f}; without any load of the "
        f"study 99% of modifications took up to {waits_us:,.0f} us); {seconds:g} s of each load after {SETTLE_S:g} s; "
        f"mMTC is real TCP through a UE's tunnel at {TCP_SCALE:.2f} of the study's rate; delays are from N3 to the far "
        f"end of N6, seen in the kernel, latencies from the SMF's request to its answer; under control `slicepilot "
        f"run` moves the knobs in mode live with {CONTROLLER}; figures in us of another machine are not compared"
    )
    return result


class _Testbed:
    """A testbed that is opened when the first run is to be played, and the controller of the run before."""

    def __init__(self) -> None:
        self._backend: Any = None
        self._agent: str | None = None
        self._controller = contextlib.ExitStack()

    def __enter__(self) -> _Testbed:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._controller.close()
        finally:
            if self._backend is not None:
                self._backend.close()

    def play(self, load: str, agent: str | None, seconds: float, seed: int, folder: Path | None) -> dict[str, Any]:
        """Cells of a load: delays by slice, and latencies by kind of transaction below ``pfcp/``."""
        scenario = scenario_of(load)
        tcp = tuple(replace(each, rate_mbps=TCP_SCALE * each.rate_mbps) for each in scenario.loads["mMTC"])
        scenario = replace(scenario, duration_s=seconds, loads=scenario.loads | {"mMTC": tcp})
        self._open(scenario)
        self._control(agent)
        self._backend.play(scenario)
        self._backend.reset(seed)
        time.sleep(SETTLE_S)
        events, latencies = self._record(seconds)
        self._backend.stop_load()
        if folder is not None:
            _write(folder, load, events, latencies)
        delays_us = (events["exit_ns"] - events["n3_ns"]) / 1e3
        cells = {name: delays_us[events["slice"] == at] for at, name in enumerate(SLICES)}
        for at, name in enumerate(SLICES):
            own = events[events["slice"] == at]
            cells[f"{MATCHED}{name}"] = matched_as_in_the_study(own["n3_ns"], own["exit_ns"])
        cells |= {f"pfcp/{kind}": np.asarray(latencies[kind]) for kind in TRANSACTIONS}
        if empty := [name for name, values in cells.items() if not len(values)]:
            raise FailureError(f"testbed: nothing measured of {', '.join(empty)} under the {load} load")
        return {name: kept_cell(values) for name, values in cells.items()}

    def idle(self, seconds: float) -> dict[str, Any]:
        """Cells of PFCP transactions without load, which show the machine's own delay."""
        scenario = replace(scenario_of(LOADS[0]), loads={}, duration_s=seconds)
        self._open(scenario).play(scenario)
        self._backend.reset(0)
        _, latencies = self._record(seconds)
        self._backend.stop_load()
        return {f"pfcp/{kind}": kept_cell(np.asarray(latencies[kind])) for kind in TRANSACTIONS if latencies[kind]}

    def _open(self, scenario: Scenario) -> Any:
        if self._backend is None:
            self._backend = plugin("testbed").call(
                "open_backend", scenario, config=TESTBED, record_packets=True, read_only=True
            )
        return self._backend

    def _control(self, agent: str | None) -> None:
        """Let this agent act; None: no control."""
        if agent != self._agent:
            self._controller.close()
            self._agent = agent
            if agent is not None:
                self._controller.enter_context(acting(self._backend.testbed.spec.name, agent))

    def _record(self, seconds: float) -> tuple[Any, dict[str, list[float]]]:
        """Packets and transactions of some seconds."""
        backend, parts, latencies = self._backend, list[Any](), defaultdict[str, list[float]](list)
        backend.packet_events()  # of before
        before = backend.unreported_events
        with contextlib.closing(backend.transactions()) as transactions:
            began_s = asked_s = time.monotonic()
            while (now_s := time.monotonic()) < began_s + seconds + LAST_S:
                if now_s < began_s + seconds:
                    parts.append(backend.packet_events())
                    if now_s >= asked_s:
                        transactions.begin()
                        asked_s += 1.0 / SESSIONS_PER_S
                for kind, latency_us in transactions.read():
                    latencies[kind].append(latency_us)
                time.sleep(READ_S)
            if transactions.failures:
                raise FailureError(f"testbed: PFCP: {transactions.failures[0]}")
        events = np.concatenate(parts)
        if (left_out := backend.unreported_events - before) > MOST_LEFT_OUT * len(events):
            raise FailureError(
                f"testbed: {left_out} of {len(events)} packets were not recorded: the machine is too busy"
            )
        return events, latencies


def _write(folder: Path, load: str, events: Any, latencies: dict[str, list[float]]) -> None:
    """The run in the study's own files."""
    parts = [
        {"slice": name, "received_ns": own["n3_ns"], "sent_ns": own["exit_ns"], "packet_bytes": own["bytes"]}
        for name, own in ((name, events[events["slice"] == at]) for at, name in enumerate(SLICES))
    ]
    write_forwarding(folder / csv_name(load), parts)
    kinds = [kind for kind in TRANSACTIONS for _ in latencies[kind]]
    write_pfcp(
        folder / f"o1_pfcp_exp_{load}.csv", kinds, np.asarray([v for kind in TRANSACTIONS for v in latencies[kind]])
    )


@contextlib.contextmanager
def acting(testbed: str, agent: str) -> Iterator[None]:
    """``slicepilot run`` in mode live on a testbed that is up, with supervisor and publisher.

    Raises:
        FailureError: it did not come up, or ended early; with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="slicepilot-study-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # decision records are written by another user
        config = {
            "name": testbed,
            "mode": "live",
            "agent": agent,
            "run_root": str(folder / "run"),
            "state_root": str(folder / "state"),
        }
        replace_file(folder / "run.yaml", yaml.safe_dump(config).encode())
        log = folder / "log"
        command = [sys.executable, "-P", "-m", "slicepilot.cli", "run", "-c", str(folder / "run.yaml")]
        with appended(log) as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=os.environ)
        try:
            _wait(process, folder / "run" / testbed / "ticks", log)
            yield
            if process.poll() is not None:
                raise FailureError(f"controller: ended early: {_tail(log)}")
        finally:
            _stop(process)


def _wait(process: subprocess.Popen[bytes], ring: Path, log: Path) -> None:
    """Until it has ticked in mode live for a while."""
    deadline = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(ConfigError), contextlib.closing(TickReader(ring)) as reader:
            if reader.notes().get("mode") == "live" and reader.written >= TICKS:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise FailureError(f"controller: did not come up: {_tail(log)}")
        time.sleep(LOOK_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its supervisor restores the knobs
        process.wait()


def _tail(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
