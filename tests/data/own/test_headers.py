"""Units that headers spell out, in any of the usual ways."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.data.own.names import guess, is_time
from slicepilot.data.own.propose import propose
from slicepilot.data.own.units import known_unit
from tests.data.own.test_kinds import table_of, written

FORMS = ("{} in {}", "{} ({})", "{} [{}]", "{} / {}", "{}_{}")
QUANTITIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "throughput": ("carried_mbps", ("Mbit/s", "kbit/s", "Gbit/s", "Mbps", "MB/s", "kB/s", "bytes/s", "Mbits/sec")),
    "offered load": ("offered_mbps", ("Mbit/s", "bit/s", "Gbps")),
    "delay": ("delay_us", ("seconds", "milliseconds", "ms", "us", "µs", "ns", "microseconds")),
    "round trip": ("latency_ms", ("ms", "us", "milliseconds")),
    "jitter": ("jitter_ms", ("ms", "us")),
    "cpu use": ("cpu_use_mcpu", ("millicores", "cores", "mCPU", "%")),
    "loss": ("loss_ratio", ("%", "percent")),
    "memory": ("memory_mib", ("MiB", "MB", "bytes", "GiB")),
}
CASES = [(word, unit) for word, (_, units) in QUANTITIES.items() for unit in units]


@pytest.mark.parametrize(("form", "case"), list(itertools.product(FORMS, CASES)))
def test_a_unit_is_the_same_however_it_is_attached(form: str, case: tuple[str, str]) -> None:
    word, unit = case
    found = guess(form.format(word, unit), np.asarray([1.0, 2.0, 3.0]))
    assert (found.quantity, found.unit) == (QUANTITIES[word][0], known_unit(unit))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unit", ["kWh/s", "J/s", "furlongs/s", "requests/min"])
def test_an_unknown_unit_over_another_is_kept_and_unsure(form: str, unit: str) -> None:
    """The ``s`` after a slash is never seconds, nor does the table's name claim them."""
    found = guess(form.format("power", unit), np.asarray([1.0, 2.0]))
    assert found.unit is None
    assert not found.quantity.endswith(("_s", "_per_s"))
    assert unit in found.doubt
    assert "not known" in found.doubt


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unit", ["seconds", "s", "milliseconds", "ms", "microseconds", "us", "ns"])
def test_times_with_a_unit_are_times(form: str, unit: str) -> None:
    lone_slash = form == "{} / {}" and unit == "s"
    for word in ("time", "Timestamp", "elapsed", "elapsed time", "t"):
        assert is_time(form.format(word, unit).lower()) != lone_slash
    assert not is_time(form.format("delay", unit))


SPELLED = [
    ("time in {}", "slice name", "throughput in Mbit/s", "latency in ms"),
    ("elapsed ({})", "slice", "throughput (Mbit/s)", "latency (ms)"),
    ("time [{}]", "slice_id", "throughput [Mbit/s]", "latency [ms]"),
    ("time_{}", "slice", "throughput_mbit_s", "latency_ms"),
]


@pytest.mark.parametrize("header", SPELLED)
@pytest.mark.parametrize(("unit", "scale"), [("seconds", 1), ("milliseconds", 1_000), ("us", 1_000_000)])
def test_a_file_with_times_repeated_for_each_slice(
    tmp_path: Path, header: tuple[str, ...], unit: str, scale: int
) -> None:
    rows = [f"{n * scale},{name},{10 * k + n},{n + 1}" for n in range(5) for k, name in enumerate(("embb", "urllc"), 1)]
    text = ",".join(header).format(unit) + "\n" + "\n".join(rows) + "\n"
    path = written(tmp_path / "d.csv", text)
    seen = table_of(tmp_path, path).to_pylist()
    assert len(seen) == 10
    assert [row["time_s"] for row in seen if row["slice"] == "urllc"] == pytest.approx([0, 1, 2, 3, 4])
    first: dict[str, Any] = seen[0]
    assert first["slice"] == "embb"
    assert (first["carried_mbps"], first["delay_us"]) == pytest.approx((10.0, 1000.0))
    assert not [line for line in propose([path]).unsure if "no time column" in line]


def test_a_map_without_a_time_says_so(tmp_path: Path) -> None:
    path = written(tmp_path / "d.csv", "test time in minutes,slice,delay_us\n0,a,5\n1,a,6\n")
    proposal = propose([path])
    [line] = [line for line in proposal.unsure if "no time column" in line]
    assert line == 'd.csv: no time column found; left out: "test time in minutes" (set time: and time_unit:)'
    assert "# unsure: no time column found" in proposal.text
    assert "a second time" not in proposal.text
