"""The cells of Mishra and Pandey (2026), their statistics, and their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from slicepilot.data.files import replacing
from slicepilot.data.studies.mishra.tables import FORWARDING_COLUMNS, PFCP_COLUMNS
from slicepilot.env.compiled import njit
from slicepilot.training.studies.study import Figure, Store, figure_over

LOADS = ("light", "medium", "heavy")
SLICES = ("eMBB", "URLLC", "mMTC")
TRANSACTIONS = ("establishment", "modification", "deletion")
STATISTICS = ("mean", "p50", "p95", "p99")
CONTROLLED, CONTROLLER = "controller/", "queue-greedy"
"""Prefix of rows of the same cells while a controller acts, and its agent."""
MATCHED = "matched/"
"""Cells of the same packets, as the study's own script would have matched them at both ends."""
IDLE = "idle/"
"""Cells of PFCP transactions without any load."""
CURVE = np.concatenate([np.linspace(0.0, 0.98, 99), np.linspace(0.981, 1.0, 20)])
"""Shares of packets at which the curves of the pictures are kept."""
WINDOW_NS = 10_000_000  # in which the study's script seeks a packet's time at N3
PARTS, LEAST = 10, 100  # of a run, for intervals; packets in each

Array = npt.NDArray[np.float64]


def delay_key(load: str, slice_name: str, statistic: str, player: str = "") -> str:
    """Of a row of N3-to-N6 delays."""
    return f"{player}{load}/{slice_name}/delay/{statistic}"


def pfcp_key(load: str, kind: str, statistic: str, player: str = "") -> str:
    """Of a row of PFCP latencies."""
    return f"{player}{load}/pfcp/{kind}/{statistic}"


def _statistics(times_us: Array) -> dict[str, float]:
    p50, p95, p99 = np.quantile(times_us, [0.5, 0.95, 0.99]).tolist()
    return {"mean": float(times_us.mean()), "p50": p50, "p95": p95, "p99": p99}


def figures_of_cell(times_us: Array) -> Iterator[tuple[str, Figure]]:
    """Statistics of delays or latencies (N,) in their order in time; intervals over ten parts of the run, if long."""
    parts = np.array_split(times_us, PARTS) if len(times_us) >= PARTS * LEAST else []
    each = [_statistics(part) for part in parts]
    for name, value in _statistics(times_us).items():
        yield name, figure_over(value, [part[name] for part in each]) if each else Figure(value)


def kept_cell(times_us: Array) -> dict[str, Any]:
    """Statistics, curve (us, at the shares `CURVE`) and count of a cell, as a `Store` keeps them."""
    figures = {name: [figure.value, figure.low, figure.high] for name, figure in figures_of_cell(times_us)}
    curve = [round(value, 2) for value in np.quantile(times_us, CURVE).tolist()]
    return {"n": len(times_us), "figures": figures, "curve": curve}


def matched_as_in_the_study(received_ns: npt.NDArray[Any], sent_ns: npt.NDArray[Any]) -> Array:
    """Delays in us that the study's script would give these packets (N,) of a slice, in their order in time.

    ``instrumentation/parse_tcbpf.awk`` of its repository knows packets behind the UPF by nothing but their slice. Each
    gets the latest packet at N3 that is still free, if that came within 10 ms; the others are left out. (Its buffer of
    500 free packets is not limited here.)
    """
    times_ns = np.concatenate([received_ns, sent_ns]).astype(np.int64)
    leaves = np.repeat([False, True], [len(received_ns), len(sent_ns)])
    order = np.lexsort((leaves, times_ns))
    return np.asarray(_match(times_ns[order], leaves[order]) / 1e3, np.float64)


@njit(cache=True)
def _match(times_ns: np.ndarray, leaves: np.ndarray) -> np.ndarray:
    result, free = np.empty(len(times_ns)), np.empty(len(times_ns), np.int64)
    count = waiting = 0
    for event in range(len(times_ns)):
        if not leaves[event]:
            free[waiting] = times_ns[event]
            waiting += 1
        elif waiting and times_ns[event] - free[waiting - 1] <= WINDOW_NS:
            waiting -= 1
            result[count] = times_ns[event] - free[waiting]
            count += 1
    return result[:count]


def folder_of(store: Store, name: str) -> Path | None:
    """Folder for a source's CSV files beside the store's file; None if nothing is stored."""
    if store.path is None:
        return None
    folder = store.path.parent / name
    folder.mkdir(exist_ok=True)
    return folder


def write_forwarding(path: Path, parts: Sequence[Mapping[str, Any]]) -> None:
    """A file ``o1_forwarding_exp_LOAD.csv`` as the study's repository describes it (docs/03_dataset_schema.md).

    Parts have of each slice ``slice``, ``received_ns`` and ``sent_ns`` (N,), ``packet_bytes`` (N,) or a number.
    """
    received, sent = (
        np.concatenate([part[name] for part in parts]).astype(np.int64) for name in ("received_ns", "sent_ns")
    )
    lengths = [np.broadcast_to(np.asarray(part["packet_bytes"], np.int32), len(part["sent_ns"])) for part in parts]
    slices = np.repeat([str(part["slice"]) for part in parts], [len(part["sent_ns"]) for part in parts])
    order = np.lexsort((received, sent))  # as packets left
    columns = (slices, (sent - received) / 1e3, np.concatenate(lengths), received, sent)
    table = [pa.array(column[order]) for column in columns]
    interface = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(order), np.int32)), ["eth0"]).cast(pa.string())
    _write(path, pa.table([*table, interface], names=FORWARDING_COLUMNS))


def write_pfcp(path: Path, kinds: Sequence[str], latencies_us: Array) -> None:
    """A PFCP file as the study's repository describes it, ``o1_pfcp_exp_LOAD.csv``; types (N,) and latencies (N,)."""
    _write(path, pa.table([pa.array(kinds, pa.string()), pa.array(latencies_us)], names=PFCP_COLUMNS))


def _write(path: Path, table: pa.Table) -> None:
    with replacing(path) as file:
        file.write((",".join(table.column_names) + "\n").encode())  # Arrow would put names in quotes
        pacsv.write_csv(table, file, pacsv.WriteOptions(include_header=False, quoting_style="none"))
