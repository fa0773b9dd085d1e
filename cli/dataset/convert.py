"""``slicepilot dataset convert``: tables between Parquet and CSV, episodes between Parquet and Minari."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.datasets import Converted
from slicepilot.cli.shared.output import console, print_json, progress_bar, stderr
from slicepilot.configs import ConfigError

from .paths import (
    ConditionOption,
    KindOption,
    QfiOption,
    UeOption,
    UnitOption,
    kind_of,
    options_of,
    what_is,
    writing_to,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.data.faults import Faults
    from slicepilot.data.studies.kinds import Options
    from slicepilot.data.tables.tidy import Stream

PARQUET, CSV = ".parquet", ".csv"


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="File or folder to convert.", show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File or folder to write.", show_default=False)],
    kind: KindOption = None,
    unit: UnitOption = None,
    qfi: QfiOption = None,
    condition: ConditionOption = None,
    ue: UeOption = None,
    reward: Annotated[str, typer.Option(help="Reward weights for records: a name or a YAML file.")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Convert a table or episodes to another format.

    A table, or a file of a release, becomes NAME.parquet or NAME.csv. Episodes (Parquet, Minari, or the records of
    a controller) become NAME.parquet or a Minari dataset, a folder NAME-vN.

    Example: slicepilot dataset convert episodes.parquet slices-v0
    """
    if target.exists():
        raise ConfigError(f"out = {str(target)!r}: exists; expected a new path")
    what = what_is(source)
    if what == "folder":
        raise ConfigError(f"in = {str(source)!r}: a folder; expected one file (`dataset import` takes folders)")
    with writing_to(target.parent), progress_bar() as progress:
        if what in {"episodes", "minari", "records"}:
            document = _convert_episodes(source, target, reward)
        else:
            document = _convert_table(source, target, kind, options_of(unit, qfi, condition, ue), progress)
    if as_json:
        print_json(document, Converted)
        return
    left_out = document.get("left_out", 0)
    why = f", {left_out:,} left out: see `dataset validate`" if left_out else ""
    console.print(
        f"{target}: {document['kind']}, {document['rows']:,} rows{why}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def read_any_episodes(path: Path, reward: str = "default") -> EpisodeSet:
    """Episodes of a file, a folder of files, a Minari dataset, or a controller's records scored by a reward."""
    what = what_is(path)
    if what == "minari":
        from slicepilot.training.recording.minari_files import read_minari

        return read_minari(path)
    if what == "records":
        from slicepilot.controller.record.reader import SegmentReader
        from slicepilot.env.reward import RewardWeights
        from slicepilot.training.recording.decision_records import episodes_of

        records = SegmentReader(path)
        episodes = episodes_of(records.stretches(), RewardWeights.from_yaml(reward))
        for name, why in sorted(records.broken.items()):
            stderr.print(f"left out: {name}: {why}", markup=False, highlight=False, soft_wrap=True)
        return episodes
    from slicepilot.data.episodes.files import read_episodes

    return read_episodes(path)


def _convert_episodes(source: Path, target: Path, reward: str) -> dict[str, Any]:
    from slicepilot.data.episodes.files import write_episodes

    if target.suffix not in {PARQUET, ""}:
        raise ConfigError(f"out = {str(target)!r}: accepted for episodes: NAME.parquet, or NAME-vN for Minari")
    episodes = read_any_episodes(source, reward)
    if target.suffix:
        write_episodes(episodes, target)
    else:
        from slicepilot.training.recording.minari_files import write_minari

        write_minari(episodes, target)
    return {"path": str(target), "kind": "episodes", "episodes": len(episodes), "rows": episodes.num_steps}


def _convert_table(
    source: Path, target: Path, kind: str | None, options: Options, progress: Progress
) -> dict[str, Any]:
    from slicepilot.data.faults import Faults
    from slicepilot.data.studies.kinds import find as by_name
    from slicepilot.data.studies.releases import find
    from slicepilot.data.tables.tidy import Origin, write_csv, write_tidy

    if target.suffix not in {PARQUET, CSV}:
        raise ConfigError(f"out = {str(target)!r}: accepted for tables: NAME.parquet or NAME.csv")
    if target.suffix == PARQUET and what_is(source) == "tidy":
        raise ConfigError(f"out = {str(target)!r}: the table is already in Parquet; expected NAME.csv")
    faults = Faults()
    task = progress.add_task(source.name, total=1.0)
    name, stream = _table(source, kind, options, faults, lambda share: progress.update(task, completed=share))
    if target.suffix == CSV:
        rows = write_csv(stream, target)
    else:
        release = find(by_name(name).release)
        rows = write_tidy(target, stream, Origin(name, source, release.citation, release.licence), faults).rows
    document = {"path": str(target), "kind": name, "rows": rows, "left_out": faults.left_out}
    return document | {"faults": faults.to_json()}


def _table(source: Path, kind: str | None, options: Options, faults: Faults, show: Any) -> tuple[str, Stream]:
    """The kind and the rows of a tidy table, or of a file of a release."""
    from slicepilot.data.tables.tidy import read_description, read_tidy

    if what_is(source) == "tidy":
        return read_description(source).kind, read_tidy(source)
    own = kind_of(source, kind)
    return own.name, own.read(source, faults, options, show)
