"""Measurements of slices from episodes or records: one row per slice and control period."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.record.columns import slice_names
from slicepilot.controller.record.reader import SegmentReader
from slicepilot.data import arrow
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.tables.tidy import Stream
from slicepilot.env.telemetry import SLICE_FIELDS

WORDS = pa.dictionary(pa.int32(), pa.string())
_CARRIED = SLICE_FIELDS.index("carried_mbps")
_DELAYS = [index for index, name in enumerate(SLICE_FIELDS) if name.startswith("delay_")]


def schema_of(*words: str) -> pa.Schema:
    """Columns: slice, ``words``, and those of `slicepilot.env.telemetry.SLICE_FIELDS`."""
    return pa.schema([(name, WORDS) for name in ("slice", *words)] + [(name, pa.float32()) for name in SLICE_FIELDS])


def slice_rows(
    telemetry: npt.NDArray[Any],
    valid: npt.NDArray[np.bool_],
    names: tuple[str, ...],
    words: Mapping[str, tuple[npt.NDArray[Any], tuple[str, ...]]],
) -> pa.RecordBatch:
    """Rows of T periods and S slices; delays are NaN where a slice could not be measured or carried nothing.

    Args:
        telemetry: (T, F, S), as `SLICE_FIELDS`; of the first of them, where later ones are newer than the recording.
        valid: (T, S), the slice was measured.
        names: of the slices.
        words: by column, codes (T,) and what they stand for.
    """
    periods, fields, slices = telemetry.shape
    figures = np.full((len(SLICE_FIELDS), periods * slices), np.nan, np.float32)
    figures[:fields] = telemetry.transpose(1, 0, 2).reshape(fields, -1)
    silent = ~valid.reshape(-1) | (figures[_CARRIED] <= 0)
    for index in _DELAYS:
        figures[index][silent] = np.nan
    coded = {"slice": (np.tile(np.arange(slices), periods), names)}
    coded |= {name: (np.repeat(codes, slices), labels) for name, (codes, labels) in words.items()}
    arrays = [arrow.words(codes.astype(np.int32), labels) for codes, labels in coded.values()]
    return pa.record_batch([*arrays, *map(arrow.numbers, figures)], schema_of(*words))


def episode_rows(episodes: EpisodeSet) -> Stream:
    """The measurement after each decision of episodes, with the behaviour that decided.

    Raises:
        ConfigError: the telemetry was not kept.
    """
    names = tuple(str(spec.get("name")) for spec in episodes.facts.get("slices", ()))

    def batches() -> Iterator[pa.RecordBatch]:
        for number, episode in enumerate(episodes):
            if episode.telemetry is None or episode.telemetry.shape[2] != len(names):
                raise ConfigError(f"episode {number}: telemetry was not kept; expected episodes of `dataset record`")
            seen = episode.telemetry[1:]
            valid = np.ones(seen.shape[::2], np.bool_) if episode.valid is None else episode.valid[1:]
            acted = np.zeros(len(seen), np.int32)
            yield slice_rows(seen, valid, names, {"behaviour": (acted, (episode.behaviour,))})

    return Stream(schema_of("behaviour"), batches(), ("slice", "behaviour"))


def record_rows(folder: Path, broken: dict[str, str]) -> Stream:
    """The ticks of a records folder, with the mode of each.

    Args:
        broken: filled with files that cannot be read, and the reason.

    Raises:
        ConfigError: no such folder, or no records in it.
    """
    reader = SegmentReader(folder)
    if reader.span_ns() is None:
        raise ConfigError(f"records {str(folder)!r}: no whole segment; expected the records folder of a controller")

    def batches() -> Iterator[Any]:
        labels = tuple(mode.label for mode in sorted(Mode))
        for stretch in reader.stretches():
            own = stretch.records
            names = slice_names(stretch.description)
            valid = own["valid"][:, : len(names)].astype(np.bool_)
            yield slice_rows(own["slices"], valid, names, {"mode": (own["mode"].astype(np.int32), labels)})
        broken.update(reader.broken)

    return Stream(schema_of("mode"), batches(), ("slice", "mode"))
