"""Guess quantity, unit and slice from the name of a column or series."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slicepilot.data.tables.tidy import UNITS, unit_of

from .map import OWN_COLUMNS
from .reading import table_name
from .rows import Floats
from .units import KINDS, Written, is_compound, known_unit, written_unit

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z])")
_PARTS = re.compile(r"[A-Za-zµ%]+\d*[A-Za-z]*|\d+(?:\.\d+)?[a-z]*")
_QUANTILE = re.compile(r"(?:p|q|pct|perc|percentile|quantile)?_?(50|75|90|95|98|99|999)(?:th|p|pct|percentile)?")
_SLICE = re.compile(r"(?:slice|upf|snssai|nssai|nsi|sst|pod|s)\d+[a-z]?")
_SLICE_WORDS = frozenset({"slice", "upf", "snssai", "nssai", "nsi", "sst", "pod"})
_KNOWN_SLICES = frozenset({
    "embb", "urllc", "mmtc", "miot", "v2x", "mcx", "gaming", "voice", "video", "iot", "besteffort", "web",
})  # fmt: skip
SLICE_LABELS = (
    "slice", "slice_id", "slice_name", "sliceid", "slicename", "s_nssai", "snssai", "nssai", "nsi", "upf", "upf_name",
    "upf_id", "pod", "pod_name", "container", "container_name", "workload", "app", "service", "dnn", "tenant",
    "traffic_class", "class", "flow", "ue", "ue_ip", "instance", "namespace", "name", "sst", "sd",
)  # fmt: skip
"""Names of columns and labels that identify slices, best first."""
KEPT = (
    "run", "run_id", "experiment", "exp", "cycle", "trial", "rep", "repetition", "seed", "episode", "condition", "load",
    "scenario", "agent", "policy", "behaviour", "direction", "phase", "test", "group", "setting",
)  # fmt: skip
"""Names of columns of words that are kept."""
QUANTITY_NAMES = (
    "metric", "metric_name", "quantity", "kpi", "measure", "variable", "field", "_field", "indicator", "parameter",
    "counter", "measurement", "_measurement", "series", "name", "stat",
)  # fmt: skip
VALUE_NAMES = ("value", "val", "_value", "v", "reading", "amount", "result")
UNIT_NAMES = ("unit", "units", "uom")
TIME_NAMES = (
    "time", "timestamp", "datetime", "date_time", "ts", "t", "date", "_time", "time_s", "epoch", "unixtime", "clock",
    "seconds", "elapsed", "time_ms", "time_us", "time_ns", "timestamp_s", "timestamp_ms", "timestamp_us",
    "timestamp_ns", "elapsed_time", "time_elapsed", "time_since_start", "relative_time", "simulation_time",
    "ts_s", "ts_ms", "ts_us", "ts_ns", "sent_ns", "ts_tx_ns", "received_ns", "ts_rx_ns",
)  # fmt: skip
TIME_UNITS = ("ns", "µs", "ms", "s")
CPU_DIMENSIONS = frozenset({"user", "system", "softirq", "irq", "nice", "steal", "guest", "guest_nice"})
"""Dimensions of Netdata's charts of CPU time that is used."""
_OFFERED = frozenset({"offered", "offer", "demand", "ingress", "arrival", "arrivals", "arriving", "n3", "requested"})
_CARRIED = frozenset({"carried", "delivered", "goodput", "served", "egress", "n6", "throughput", "tput", "achieved"})
_IN = frozenset({"rx", "receive", "received", "recv", "in", "input", "incoming"})
_OUT = frozenset({"tx", "transmit", "transmitted", "sent", "send", "out", "output", "outgoing"})
_RATES = frozenset(
    {"rate", "bitrate", "datarate", "bandwidth", "bw", "traffic", "load", "throughput", "tput", "volume"}
)
_DISKS = frozenset({"io", "disk", "pgfault", "pgfaults", "read", "write", "reads", "writes", "swap", "fs"})
_SERVERS = frozenset({"server", "sink", "iperf", "iperf3"})
_LIMITS = frozenset({"limit", "quota", "cap", "ceiling", "max"})
_USED = frozenset({"use", "used", "usage", "utilization", "utilisation", "util"})


@dataclass(frozen=True)
class Guess:
    """The probable contents of a column.

    Attributes:
        quantity: of the table; unit: of the file's values, None for that of the quantity.
        slice: that the name says; counter, sum: as in `slicepilot.data.own.map.Mapped`.
        doubt: what is not sure, and what else it might be; empty where the name says all.
        known: whether the name says what it is.
    """

    quantity: str
    unit: str | None = None
    slice: str | None = None
    counter: bool = False
    sum: bool = False
    doubt: str = ""
    known: bool = True


def words_of(name: str) -> list[str]:
    """The parts of a name in small letters: ``CpuUsage_p99 (ms)`` is cpu, usage, p99, ms."""
    return [part.lower() for part in _PARTS.findall(_CAMEL.sub(" ", name).replace("_", " "))]


def unit_in(name: str) -> tuple[str | None, list[str]]:
    """The unit that a name ends with, and its other words."""
    written = written_unit(name)
    if written is not None:
        return written.unit, words_of(written.rest)
    words = words_of(name)
    plain = [word for word in words if word not in {"total", "count", "sum", "avg", "mean", "max", "min", "rate"}]
    for own in (plain, words):
        if len(own) > 2 and own[-2] == "per" and own[-1] in {"s", "sec", "second"}:
            unit = known_unit(f"{own[-3]}/s")
            return unit or "1/s", [word for word in words if word not in own[-3 if unit else -2 :]]
        if len(own) > 2 and own[-1] in {"s", "sec"} and (unit := known_unit(f"{own[-2]}/s")) is not None:
            return unit, [word for word in words if word not in own[-2:]]
        if len(own) > 1 and len(own[-1]) < 13 and (unit := known_unit(own[-1])) is not None and own[-1] != "cpu":
            return unit, [word for word in words if word != own[-1]]
    if len(words) == 1 and words[0] in {"mbps", "kbps", "gbps", "bps", "pps"}:
        return known_unit(words[0]), words
    return None, words


def guess(
    name: str,
    values: Floats,
    hints: Sequence[str] = (),
    unit: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Guess:
    """Guess the contents of a column from its name and values.

    Args:
        name: of the column, metric, or word of a long table.
        values: some of them, in the unit of the file.
        hints: words of the file's name, which say something where the name says nothing.
        unit: where another column says it.
    """
    own = known_unit(unit) if unit else None
    if own is None and (strange := _unknown_unit(name, unit)) is not None:
        return _kept(strange)
    in_name, words = unit_in(name)
    unit_known = own or in_name
    extra = [word for value in (labels or {}).values() for word in words_of(value) if word in {"n3", "n6"}]
    counter = name.endswith(("_total", "_sum"))  # by Prometheus' rules of naming
    guessed = _by_words({*words, *extra}, words, unit_known, counter, name)
    if guessed is None and hints:
        guessed = _by_words({*words, *extra, *hints}, [*words, *hints], unit_known, counter, "")
        if guessed is not None:
            guessed = replace(guessed, doubt=guessed.doubt or "only the name of the file says what it is")
    if guessed is None:
        return _unknown(name, unit_known, counter, values, extra)
    if guessed.unit is None:
        guessed = _with_unit(guessed, unit_known, values)
    return guessed


def _by_words(words: Collection[str], order: Sequence[str], unit: str | None, counter: bool, name: str) -> Guess | None:
    """By the words of a name; units are those of the name, or None."""
    has = set(words).intersection
    quantity = table_name(name) if name else ""
    is_rate = unit is not None and (unit in KINDS["rate"] or (counter and unit in KINDS["size"]))
    if quantity in {"egress_mbps", "cpu_limit_mcpu", "nice"}:
        return Guess(quantity, unit)
    if has({"cpu"}) and has({"limit", "quota"}) and has(_USED):
        return None  # a share of the limit
    if has(_DISKS) and not has({"net", "network", "n3", "n6"}):
        return None
    if has({"cpu"}) and has(_LIMITS) and not has(_USED):
        return Guess("cpu_limit_mcpu", unit)
    if has({"nice", "niceness"}):
        return Guess("nice", unit="")
    if has({"egress", "tbf", "shaper", "shaping", "shaped", "bandwidth", "bw", "rate", "tx"}) and has(
        {"limit", "cap", "ceiling", "tbf", "shaper", "shaping", "shaped"}
    ):
        return Guess("egress_mbps", unit)
    if has({"throttled", "throttling", "throttle"}) and unit in {None, "1", "%"} and not counter:
        return Guess("throttled_ratio", unit)
    if has({"runqueue", "runq", "rq", "sched", "scheduling"}) or {"run", "queue"} <= set(words):
        return Guess("runqueue_delay_us", unit) if unit is None or unit in KINDS["time"] else None
    if (guessed := _delay(words, order, unit)) is not None:
        return guessed
    if has({"loss", "lost", "drop", "drops", "dropped", "plr"}):
        return Guess("loss_ratio", unit) if unit in {None, "1", "%"} and not counter and not has({"packets"}) else None
    if has({"uplink", "link"}) and has(_USED):
        return Guess("uplink_use_ratio", unit)
    if has({"cpu", "cpus"}) or (unit in KINDS["CPU time"] and unit not in {"1", "%"} and not counter):
        if has({"idle"}):
            return Guess("cpu_idle_ratio", unit)
        if has(
            {"pressure", "psi", "frequency", "mhz", "shares", "weight", "request", "requests", "temperature", "periods"}
        ):
            return None
        return Guess("cpu_use_mcpu", "s" if counter and unit is None else unit, counter=counter)
    if has({"memory", "mem", "rss", "ram", "workingset"}):
        return None if unit == "%" else Guess("memory_mib", unit)
    if (has({"packet", "pkt", "frame"}) and has({"len", "length", "size", "bytes"})) or (
        unit == "B" and has({"packet"})
    ):
        return Guess("packet_bytes", unit or "B")
    if has({"packets", "pkts"}) or (unit is not None and unit in KINDS["packet rate"]):
        if counter:
            return Guess("packets_pps", "packets", counter=True)
        return Guess("packets_pps", unit) if unit in KINDS["packet rate"] else None
    if (
        is_rate
        or (has(_RATES | _OFFERED | _CARRIED) and unit is None)
        or (unit is None and has(_IN | _OUT) and counter)
    ):
        return _rate(words, unit, counter)
    return None


def _delay(words: Collection[str], order: Sequence[str], unit: str | None) -> Guess | None:
    has = set(words).intersection
    if unit is not None and unit not in KINDS["time"]:
        return None
    if has({"jitter", "pdv"}):
        return Guess("jitter_ms", unit)
    trip = has({"rtt", "ping", "roundtrip", "icmp"}) or {"round", "trip"} <= set(words)
    if not trip and not has({"delay", "delays", "latency", "latencies", "lat", "owd", "sojourn"}):
        return None
    statistic = _statistic(order)
    if trip:
        return Guess(f"latency_{statistic}_ms" if statistic else "latency_ms", unit)
    doubt = (
        ""
        if has({"delay", "delays", "owd", "sojourn", "n3", "forwarding"})
        else ("from N3 to N6, or a round trip? then quantity: latency_ms")
    )
    return Guess(f"delay_{statistic}_us" if statistic else "delay_us", unit, doubt=doubt)


def _statistic(words: Sequence[str]) -> str:
    """``p99``, ``mean`` and the like, of a name's words; empty for none."""
    for word in words:
        if word in {"median", "med"}:
            return "p50"
        if word in {"mean", "avg", "average"}:
            return "mean"
        if word in {"max", "maximum", "min", "minimum", "std", "stdev", "stddev"}:
            return word[:3]
        if word in {"0.5", "0.50", "0.9", "0.90", "0.95", "0.99", "0.999"}:
            return "p" + f"{float(word):g}"[2:].ljust(2, "0")
        if (match := _QUANTILE.fullmatch(word)) is not None:
            return f"p{match[1]}"
    return ""


def _rate(words: Collection[str], unit: str | None, counter: bool) -> Guess:
    has = set(words).intersection
    unit = "B" if counter and unit is None else unit
    if has(_OFFERED):
        return Guess("offered_mbps", unit, counter=counter)
    if has(_CARRIED):
        doubt = "" if has(_CARRIED - {"throughput", "tput"}) else "what left the UPF, or what came? then offered_mbps"
        return Guess("carried_mbps", unit, counter=counter, doubt=doubt)
    if has(_IN) and not has(_SERVERS):
        return Guess(
            "offered_mbps", unit, counter=counter, doubt="what the UPF received on N3, or a server? then carried_mbps"
        )
    if has(_IN | _OUT):
        return Guess(
            "carried_mbps", unit, counter=counter, doubt="what left the UPF on N6, or what a UE sent? then offered_mbps"
        )
    if has({"load"}):
        return Guess("offered_mbps", unit, counter=counter)
    return Guess("carried_mbps", unit, counter=counter, doubt="what left the UPF, or what came? then offered_mbps")


def _with_unit(guessed: Guess, unit: str | None, values: Floats) -> Guess:
    """The guess with the unit of the name, else with the unit that the size of the values suggests."""
    if guessed.quantity == "nice":
        return replace(guessed, unit=None)
    if unit is not None:
        return replace(guessed, unit=unit)
    likely = _likely(guessed.quantity, values)
    if likely is None:
        return guessed
    doubt = f"{guessed.doubt}; " if guessed.doubt else ""
    return replace(guessed, unit=likely, doubt=f"{doubt}no unit in the file: {likely} by the size of its values")


def _likely(quantity: str, values: Floats) -> str | None:
    """The unit that values of this size are probably in."""
    known = np.abs(values[np.isfinite(values)])
    if not len(known):
        return unit_of(quantity)
    middle, highest = float(np.median(known)), float(known.max())
    target = unit_of(quantity)
    if target == "Mbit/s":
        return "bit/s" if middle >= 2e5 else "kbit/s" if middle >= 2e4 else "Mbit/s"
    if target in {"µs", "ms"}:
        return "s" if middle < 0.02 else "ms" if middle < 100 else "µs" if middle < 1e5 else "ns"
    if target == "mCPU":
        if quantity == "cpu_limit_mcpu":
            return "CPU" if highest <= 32 else "mCPU"
        return "CPU" if highest <= 4 else "%" if highest <= 100 else "mCPU"
    if quantity.endswith("_ratio"):
        return "1" if highest <= 1 else "%"
    if target == "MiB":
        return "B" if middle >= 1e5 else "MiB"
    return target


def _unknown(name: str, unit: str | None, counter: bool, values: Floats, extra: Sequence[str]) -> Guess:
    """A column of unknown name: a rate, by the size of its values, or kept unchanged."""
    known = np.abs(values[np.isfinite(values)])
    nameless = not re.search(r"[A-Za-z]{2}", name) or name.lower() in VALUE_NAMES or extra
    if nameless and unit is None and len(known) and np.median(known) >= 1e5:
        quantity = "offered_mbps" if "n3" in extra else "carried_mbps"
        return Guess(
            quantity, "bit/s", doubt="no name and no unit: bit/s by the size of its values? or B/s", known=False
        )
    own = table_name(name)
    if counter:
        in_bytes = unit in KINDS["size"]
        stem = table_name(re.sub(r"(_bytes)?_(total|sum)$", "", own))
        quantity = f"{stem}_mbps" if in_bytes else f"{stem}_per_s"
        doubt = "not known: its increase by second"
        return Guess(quantity, unit if in_bytes else "1", counter=True, doubt=doubt, known=False)
    ending = next((ending for ending, other in UNITS.items() if other == unit), "")
    if ending and not own.endswith(ending):
        own += ending
    own = f"{own}_value" if own in OWN_COLUMNS else own
    return Guess(own, unit if ending else None, doubt="not known: kept under its own name", known=False)


def _unknown_unit(name: str, unit: str | None) -> Written | None:
    """A unit over another that is not known, of a name or of another column."""
    if unit is not None and is_compound(unit):
        return Written(name, unit, None)
    written = written_unit(name)
    return written if written is not None and written.unit is None else None


def _kept(written: Written) -> Guess:
    """A column of an unknown unit: its values stay as they are, and its name claims no unit that is known."""
    own = table_name(f"{written.rest} {written.text}")
    own = f"{own}_value" if own in OWN_COLUMNS or unit_of(own) else own
    return Guess(own, None, doubt=f"unit {written.text} is not known: values are kept as they are", known=False)


def is_time(name: str) -> bool:
    """Whether a name is one of `TIME_NAMES` with a unit of time: ``time in seconds``, ``Elapsed [ms]``."""
    unit, words = unit_in(name)
    return unit in TIME_UNITS and "_".join(word for word in words if word != "in") in TIME_NAMES


def slice_in(name: str) -> tuple[str, str] | None:
    """The slice that a column's name says, and the name without it: ``slice1_delay_us`` is slice1, ``delay_us``."""
    parts = re.split(r"([\s_.:/|-]+)", name)
    for index in range(0, len(parts), 2):
        word = parts[index].lower()
        taken = 1
        if word in _SLICE_WORDS and index + 2 < len(parts) and re.fullmatch(r"\d+[a-z]?", parts[index + 2]):
            word, taken = parts[index] + parts[index + 1] + parts[index + 2], 3
        elif not _SLICE.fullmatch(word) and word not in _KNOWN_SLICES:
            continue
        else:
            word = parts[index]
        rest = parts[:index] + parts[index + taken + 1 :] if index == 0 else parts[: index - 1] + parts[index + taken :]
        return word.strip(), "".join(rest).strip(" _.:/|-")
    return None


def slice_label(names: Collection[str]) -> str | None:
    """The label that probably tells slices apart."""
    lower = {name.lower(): name for name in names}
    return next((lower[name] for name in SLICE_LABELS if name in lower), None)
