"""Packet and PFCP events as CSV files, in the columns of the released per-packet and per-message data sets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from slicepilot.configs import ConfigError
from slicepilot.controller.telemetry.layout import PFCP_KINDS
from slicepilot.controller.telemetry.packets import PacketProbe
from slicepilot.controller.telemetry.pfcp import PfcpProbe
from slicepilot.data.files import created

PACKET_COLUMNS = "slice,delay_us,pkt_len,ts_rx_ns,ts_tx_ns,netif_rx"
PFCP_COLUMNS = "pfcp_type,latency_us"


def _open(path: Path, columns: str, option: str) -> TextIO:
    """A new file, or standard output for ``-``, with the names of the columns."""
    try:
        if path == Path("-"):
            file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        else:
            with created(path) as new:
                file = os.fdopen(os.dup(new.fileno()), "w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} = {path}: {error.strerror}; expected a file that can be written") from error
    file.write(columns + "\n")
    return file


class PacketFile:
    """One line a sampled packet: delay from N3 to the last point, bytes of the inner packet, CLOCK_MONOTONIC times,
    N3's device.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path, probe: PacketProbe) -> None:
        self._file = _open(path, PACKET_COLUMNS, "--csv")
        self._events = probe.events
        self._sources: Sequence[tuple[str, str]] = [(point.name, point.n3.device) for point in probe.points]

    def write(self) -> None:
        """Move what has happened from the ring buffer to the file."""
        events = self._events.read()
        columns = (events[field].tolist() for field in ("slice", "n3_ns", "exit_ns", "bytes"))
        for index, n3_ns, exit_ns, size in zip(*columns, strict=True):
            name, device = self._sources[index]
            self._file.write(f"{name},{(exit_ns - n3_ns) / 1e3:.3f},{size},{n3_ns},{exit_ns},{device}\n")
        self._file.flush()  # for who looks on

    def close(self) -> None:
        self.write()
        self._file.close()


class PfcpFile:
    """One line a PFCP transaction: kind of request, time until its answer.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path, probe: PfcpProbe) -> None:
        self._file = _open(path, PFCP_COLUMNS, "--pfcp-csv")
        self._events = probe.events

    def write(self) -> None:
        """Move what has happened from the ring buffer to the file."""
        events = self._events.read()
        latencies_ns = (events["answer_ns"] - events["request_ns"]).tolist()
        for kind, latency_ns in zip(events["kind"].tolist(), latencies_ns, strict=True):
            self._file.write(f"{PFCP_KINDS[kind]},{latency_ns / 1e3:.3f}\n")
        self._file.flush()

    def close(self) -> None:
        self.write()
        self._file.close()
