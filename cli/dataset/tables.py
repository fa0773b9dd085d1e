"""Tables of delays at the paths that `analyse` is given: imported tables, episodes and records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from slicepilot.configs import ConfigError

if TYPE_CHECKING:
    from slicepilot.data.tables.tidy import Stream
    from slicepilot.training.statistics.collect import Source


@dataclass
class Tables:
    """Contents of some paths; rows are read when they are needed.

    Attributes:
        delays: tables with delays.
        resources: tables of what the runs of latencies used.
        skipped: names of tables without the requested delays.
        faults: what an import has left out, by table.
        broken: files that cannot be read and why; those of records are added while they are read.
    """

    delays: list[Source] = field(default_factory=list)
    resources: list[Stream] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """Faults of the files, and files without delays; complete when all rows have been read."""
        notes = [*(f"{name}: {problem}; left out" for name, problem in self.broken.items()), *self.faults]
        if self.skipped:
            few = ", ".join(self.skipped[:4])
            notes.append(f"no such delays in {few}" + (", ..." if len(self.skipped) > 4 else ""))
        return notes


def open_tables(paths: Sequence[Path], value: str | None) -> Tables:
    """Open tables of `dataset import`, episodes, Minari datasets and records.

    Args:
        paths: files and folders; of a folder of tables, those that cannot be read are left out.
        value: the requested column of delays.

    Raises:
        ConfigError: a path that does not exist, a file that is none of these, no delays in any.
    """
    from slicepilot.training.recording.reading import what_is

    result = Tables()
    for path in paths:
        if what_is(path) != "folder":
            _add(result, path, value)
            continue
        files = sorted(path.glob("*.parquet"))
        tables = {file.stem for file in files}
        for file in files:
            if file.stem.endswith("-episodes") and file.stem.removesuffix("-episodes") in tables:
                continue  # the same measurements as the table that they were made of
            try:
                _add(result, file, value)
            except ConfigError as error:
                result.broken[file.name] = str(error).removeprefix(f"{file}: ")
    if not result.delays:
        for name, problem in result.broken.items():
            raise ConfigError(f"{name}: {problem}")
        wanted = f"a column {value}" if value else "a column such as delay_us or latency_ns"
        shown = ", ".join(map(str, paths))
        raise ConfigError(f"path = {shown}: no delays in it; expected tables of `dataset import` with {wanted}")
    return result


def _add(result: Tables, path: Path, value: str | None) -> None:
    """Open a table; the first table with delays determines the column that the others must have."""
    from slicepilot.training.statistics.collect import Source
    from slicepilot.training.statistics.columns import delay_column
    from slicepilot.training.statistics.context import RUN

    name, stream = _opened(result, path)
    wanted = delay_column(result.delays[0].stream.schema, value) if result.delays else value
    if delay_column(stream.schema, wanted) is not None:
        taken = name in {source.name for source in result.delays}
        result.delays.append(Source(f"{path.absolute().parent.name}/{name}" if taken else name, stream))
    elif {*RUN, "time_s"} <= set(stream.schema.names):
        result.resources.append(stream)
    else:
        result.skipped.append(path.name)


def _opened(result: Tables, path: Path) -> tuple[str, Stream]:
    """Name and rows of the data at a path; raises ConfigError if they cannot be read."""
    from slicepilot.training.recording.reading import what_is

    what = what_is(path)
    if what == "tidy":
        from slicepilot.data.tables.tidy import read_description, read_tidy

        description = read_description(path)
        if description.faults["total"]:
            counts = f"{description.faults['total']:,} faults, {description.faults['left_out']:,} rows left out"
            result.faults.append(f"{path.name}: {counts} by `dataset import`; see `dataset validate`")
        return path.stem, read_tidy(path)
    if what == "records":
        from slicepilot.training.statistics.slice_rows import record_rows

        return path.name, record_rows(path, result.broken)
    if what == "file":
        raise ConfigError(f"path = {str(path)!r}: no table; expected a table of `dataset import`, episodes or records")
    from slicepilot.training.statistics.slice_rows import episode_rows

    from .convert import read_any_episodes

    return path.stem, episode_rows(read_any_episodes(path))
