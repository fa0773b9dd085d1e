"""Files of Moreira et al. (arXiv:2601.12106): resources of a UPF's container, and latencies of GTP-U decapsulation.

Each run lies in a folder named after its QFI and condition, ``qf1_baseline`` (some are spelt ``qfi9_anommaly``). The
resources are what Netdata's cgroup collector showed every second, merged into ``resources_stats_merged.csv``: chart and
dimension, ``net_n3_received``. The latencies are what a bpftrace probe printed for the packets of a UE, which gtp5g
takes from `gtp5g_handle_skb_ipv4` to `netif_rx`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from slicepilot.data.csv.chunks import OnProgress, read_lines
from slicepilot.data.faults import DatasetError, Faults
from slicepilot.data.tables.tidy import Stream

LONGEST_NS = 10_000_000_000  # no packet that arrives is held for longer
MIXED_SHARE = 0.05  # of lines in another unit that make a file unusable
CONDITIONS = ("baseline", "load", "replay", "anomaly")
MAX_QFI = 63  # 3GPP TS 38.415, clause 5.5.3.3: six bits
_BATCH = 1 << 16

_FOLDER = re.compile(r"qfi?[_-]?(\d{1,3})[_-]([a-z]+)", re.IGNORECASE)
_LINE = re.compile(r"UE IP: (\d{1,3}(?:\.\d{1,3}){3}) \| Decapsulation Overhead: (-?\d{1,18}) (\w+)\s*")
# What bpftrace prints besides: when it starts, when it is interrupted, and what its maps hold at the end.
_OWN_LINE = re.compile(r"Attach(?:ing|ed) \d+ probes?\.*|\^C|@\w*(?:\[.*\])?: .*|")
_LOST = re.compile(r"Lost (\d+) events")

LATENCY_SCHEMA = pa.schema(
    [
        ("qfi", pa.int16()),
        ("condition", pa.string()),
        ("traffic_class", pa.string()),
        ("ue_address", pa.string()),
        ("sequence", pa.int64()),
        ("latency_ns", pa.int64()),
    ]
)
LATENCY_GROUPS = ("qfi", "condition", "traffic_class", "ue_address")


@dataclass(frozen=True)
class Run:
    """Which run a file is of: QFI of the UE's flow, 0 to `MAX_QFI`, and which of `CONDITIONS`."""

    qfi: int
    condition: str


def run_of(path: Path, qfi: int | None = None, condition: str | None = None) -> Run:
    """The run, from given options or else from the name of the file or of a folder above it.

    Raises:
        DatasetError: neither given nor in the name, or none that there is.
    """
    result = next(filter(None, map(_FOLDER.search, reversed(path.absolute().parts))), None)
    if result is not None:
        word = result[2].lower()
        qfi = int(result[1]) if qfi is None else qfi
        condition = condition or ("anomaly" if word.startswith("anom") else word)
    if qfi is None or condition is None:
        raise DatasetError.at(
            path, "QFI and condition: not given; expected a folder such as qf1_baseline, or --qfi with --condition"
        )
    if not 0 <= qfi <= MAX_QFI:
        raise DatasetError.at(path, f"qfi = {qfi}: expected 0 to {MAX_QFI}")
    if condition not in CONDITIONS:
        raise DatasetError.at(path, f"condition = {condition!r}: expected {', '.join(CONDITIONS)}")
    return Run(qfi, condition)


def read_latency(
    path: Path,
    run: Run,
    faults: Faults,
    traffic_classes: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> Stream:
    """The probe's lines: qfi, condition, traffic_class, ue_address, sequence (from 0) and latency_ns.

    The lines carry no time. Which UE sent what is not in the release: without ``traffic_classes`` the class is null.

    Args:
        faults: ``line`` for lines that are none of the probe's, ``range``, ``unit``, ``missing`` for events that
            bpftrace says it lost, ``truncated``.
        traffic_classes: class of each UE by its address.

    Raises:
        DatasetError: as rows are read: the file cannot be read, no line of it fits, or many are in another unit.
    """
    return Stream(LATENCY_SCHEMA, _latencies(path, run, faults, traffic_classes or {}, on_progress), LATENCY_GROUPS)


def _latencies(
    path: Path, run: Run, faults: Faults, traffic_classes: Mapping[str, str], on_progress: OnProgress | None
) -> Iterator[Any]:
    addresses: list[str] = []
    values: list[int] = []
    sequence = 0
    other_unit = None
    for number, text, ended in read_lines(path, on_progress):
        result = _LINE.fullmatch(text)
        if result is None:
            lost = _LOST.fullmatch(text)
            if lost:
                faults.add("missing", number, "events", lost[1], left_out=False)
            elif not _OWN_LINE.fullmatch(text):
                faults.add("line" if ended else "truncated", number, None, text)
            continue
        address, value = result[1], int(result[2])
        if result[3] != "ns":
            faults.add("unit", number, "latency", f"{result[2]} {result[3]}")
            other_unit = other_unit or (number, result[3])
        elif not 0 <= value <= LONGEST_NS or any(int(part) > 255 for part in address.split(".")):
            faults.add("range", number, "latency", text)
        else:
            addresses.append(address)
            values.append(value)
            if len(values) == _BATCH:
                yield _batch(run, addresses, values, sequence, traffic_classes)
                sequence += len(values)
                addresses, values = [], []
    if values:
        yield _batch(run, addresses, values, sequence, traffic_classes)
        sequence += len(values)
    others = faults.counts.get("unit", 0)
    if other_unit is not None and others > MIXED_SHARE * (others + sequence):
        line, unit = other_unit
        raise DatasetError.at(path, f"latency in {unit}, in {others} lines; expected all in ns", line)
    if not sequence:
        first = f", the first in {faults.examples()[0]}" if faults else ""
        raise DatasetError.at(
            path, f"no latency in it{first}; expected lines 'UE IP: A.B.C.D | Decapsulation Overhead: N ns'"
        )


def _batch(run: Run, addresses: list[str], values: list[int], first: int, traffic_classes: Mapping[str, str]) -> Any:
    columns = [
        [run.qfi] * len(values),
        [run.condition] * len(values),
        [traffic_classes.get(address) for address in addresses],
        addresses,
        range(first, first + len(values)),
        values,
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, LATENCY_SCHEMA, strict=True)]
    return pa.record_batch(arrays, LATENCY_SCHEMA)
