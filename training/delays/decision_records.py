"""Records as a table of what slices were measured at, one row per slice and tick, with the mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.record.columns import slice_names
from slicepilot.controller.record.reader import SegmentReader
from slicepilot.data.tables.tidy import Stream

from .slice_rows import schema_of, slice_rows


def delay_rows(folder: Path, broken: dict[str, str], on_progress: Callable[[float], None]) -> Stream:
    """The ticks of a records folder, see `slicepilot.training.delays.slice_rows`.

    Args:
        folder: of the records.
        broken: filled with files that cannot be read and what is wrong with them.
        on_progress: told about the share of the time that has been read, 0..1.

    Raises:
        ConfigError: no such folder, or no records in it.
    """
    reader = SegmentReader(folder)
    span = reader.span_ns()
    if span is None:
        raise ConfigError(f"records {str(folder)!r}: no whole segment; accepted: the records folder of a controller")
    first, last = span

    def batches() -> Iterator[Any]:
        labels = tuple(mode.label for mode in sorted(Mode))
        for stretch in reader.stretches():
            own = stretch.records
            names = slice_names(stretch.description)
            valid = own["valid"][:, : len(names)].astype(np.bool_)
            yield slice_rows(own["slices"], valid, names, {"mode": (own["mode"].astype(np.int32), labels)})
            if len(own):
                on_progress((int(own["time_ns"][-1]) - first) / max(last - first, 1))
        broken.update(reader.broken)

    return Stream(schema_of("mode"), batches(), ("slice", "mode"))
