"""Tables of delays at the paths that a command is given, of every kind that there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicepilot.configs import ConfigError

from .paths import kind_of, what_is

if TYPE_CHECKING:
    from slicepilot.data.faults import Faults
    from slicepilot.data.studies.kinds import Options
    from slicepilot.data.tables.tidy import Stream
    from slicepilot.training.statistics.collect import Source

OnProgress = Callable[[float], None]


@dataclass
class Tables:
    """Contents of some paths; rows are read when they are needed.

    Attributes:
        delays: tables with delays.
        resources: tables of what the runs of latencies used.
        skipped: names of tables and files without the requested delays.
        faults: of files that are not imported, by name, filled while they are read.
        broken: files that cannot be read and why, those of records filled as well.
    """

    delays: list[Source] = field(default_factory=list)
    resources: list[Stream] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    faults: dict[str, Faults] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What is wrong with the files, and which hold no delays; complete when all rows have been read."""
        notes = [f"{name}: {problem}; left out" for name, problem in self.broken.items()]
        for name, faults in self.faults.items():
            if faults:
                few = "; ".join(faults.describe())
                notes.append(f"{name}: {faults.total:,} faults, {faults.left_out:,} rows left out: {few}")
        if self.skipped:
            few = ", ".join(self.skipped[:4])
            notes.append(f"no such delays in {few}" + (", ..." if len(self.skipped) > 4 else ""))
        return notes


def open_tables(
    paths: Sequence[Path], kind: str | None, options: Options, value: str | None, report: OnProgress
) -> Tables:
    """Open tables of `dataset import`, files of releases, episodes, Minari datasets and records.

    Args:
        paths: files and folders; folders of neither kind are looked through, and files in them that cannot be read
            are left out.
        kind: of released files; None: as they look.
        options: what such files do not say themselves.
        value: the requested column of delays.
        report: called, while rows are read, with the share of all that has been read.

    Raises:
        ConfigError: a path that does not exist, a file of no known kind, no delays in any.
    """
    from slicepilot.data.faults import DatasetError
    from slicepilot.data.studies.kinds import files_below

    result = Tables()
    opening = _Opening(kind, options, result, report)
    for path in paths:
        if path.is_dir() and what_is(path) == "folder":
            for file in files_below([path]):
                try:
                    if _is_known(file, kind):
                        _add(result, opening, file, value)
                    else:
                        result.skipped.append(file.name)
                except DatasetError as error:
                    result.broken[file.name] = str(error).removeprefix(f"{file}: ")
        else:
            _add(result, opening, path, value)
    if not result.delays:
        for name, problem in result.broken.items():
            raise ConfigError(f"{name}: {problem}")
        wanted = f"a column {value}" if value else "a column such as delay_us or latency_ns"
        shown = ", ".join(map(str, paths))
        raise ConfigError(f"path = {shown}: no delays in it; expected files and folders with {wanted}")
    return result


def _is_known(file: Path, kind: str | None) -> bool:
    """Whether a file that lies in a folder is of a kind that can be read; raises DatasetError for one that cannot."""
    from slicepilot.data.faults import DatasetError
    from slicepilot.data.studies.kinds import detect
    from slicepilot.data.tables.tidy import is_parquet

    if not is_parquet(file):
        return kind is not None or detect(file) is not None
    try:
        return what_is(file) in {"tidy", "episodes"}
    except DatasetError:
        raise
    except ConfigError:
        return False


def _add(result: Tables, opening: _Opening, path: Path, value: str | None) -> None:
    """Put a table where it belongs; the first one with delays says which column the others must have."""
    from slicepilot.training.statistics.collect import Source
    from slicepilot.training.statistics.columns import delay_column
    from slicepilot.training.statistics.context import RUN

    name, stream = opening.open(path)
    wanted = delay_column(result.delays[0].stream.schema, value) if result.delays else value
    if delay_column(stream.schema, wanted) is not None:
        taken = name in {source.name for source in result.delays}
        result.delays.append(Source(f"{path.absolute().parent.name}/{name}" if taken else name, stream))
    elif {*RUN, "time_s"} <= set(stream.schema.names):
        result.resources.append(stream)
    else:
        result.skipped.append(path.name)


class _Opening:
    """Opens one path after the other, and adds up how much of all has been read."""

    def __init__(self, kind: str | None, options: Options, result: Tables, report: OnProgress) -> None:
        self._kind, self._options, self._found, self._report = kind, options, result, report
        self._shares: list[float] = []

    def open(self, path: Path) -> tuple[str, Stream]:
        """Name and rows of what lies there; raises ConfigError for nothing that can be read."""
        self._shares.append(0.0)
        number = len(self._shares) - 1

        def report(share: float) -> None:
            self._shares[number] = share
            self._report(sum(self._shares) / len(self._shares))

        what = what_is(path)
        if what == "tidy":
            from slicepilot.data.tables.tidy import read_description, read_tidy

            return path.stem, _counted(read_tidy(path), read_description(path).rows, report)
        if what == "records":
            from slicepilot.training.statistics.slice_rows import record_rows

            return path.name, record_rows(path, self._found.broken, report)
        if what in {"episodes", "minari"}:
            from slicepilot.training.statistics.slice_rows import episode_rows

            from .convert import read_any_episodes

            return path.stem, episode_rows(read_any_episodes(path))
        from slicepilot.data.faults import Faults

        kind = kind_of(path, self._kind)
        name = "-".join(filter(None, [kind.name, kind.label(path, self._options)]))
        faults = self._found.faults.setdefault(str(path), Faults())
        return name, kind.read(path, faults, self._options, report)


def _counted(stream: Stream, rows: int, report: OnProgress) -> Stream:
    """The same rows, reporting the share that has been read."""
    from slicepilot.data.tables.tidy import Stream

    def batches() -> Iterator[Any]:
        seen = 0
        for batch in stream.batches:
            yield batch
            seen += batch.num_rows
            report(seen / max(rows, 1))

    return Stream(stream.schema, batches(), stream.groups)
