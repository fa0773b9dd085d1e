"""Traces from files of any supported format."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.configs.reading import read_file
from slicepilot.data.captures import is_capture

from .captures import Chosen, read_packets
from .csv_rates import read_rates
from .trace import PacketTrace, RateTrace, Trace

MOST_BYTES = 256 << 20


def read_trace(path: Path, name: str, chosen: Chosen) -> Trace:
    """The trace of a slice out of a CSV file, a pcap or a pcapng file.

    Args:
        name: of the slice in CSV.
        chosen: packets of a capture.

    Raises:
        ConfigError: a file that cannot be read, is reached by another user's link, is too large, or is not as it
            should be; a slice that is not in it.
    """
    try:
        status = path.stat()
        state = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError):  # reading says in a line what is wrong
        state = None
    read = _read(path, chosen, state)
    if isinstance(read, PacketTrace):
        return read
    if name not in read:
        raise ConfigError(f"file {str(path)!r}: no rows of slice {name!r}; {did_you_mean(name, list(read))}")
    return read[name]


@lru_cache(maxsize=16)
def _read(path: Path, chosen: Chosen, _state: tuple[int, ...] | None) -> PacketTrace | dict[str, RateTrace]:
    """The contents of a file; cached while the file is unchanged, since each slice and run reads it."""
    what = f"file {str(path)!r}"
    content = read_file(path, MOST_BYTES, what)
    if is_capture(content):
        return read_packets(content, what, chosen)
    if chosen != Chosen():
        raise ConfigError(f"{what}: source and teid choose packets of a capture; this is CSV, whose slices have names")
    return read_rates(content, what)
