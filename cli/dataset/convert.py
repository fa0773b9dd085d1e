"""``slicepilot dataset convert``: tables to CSV, episodes between Parquet and Minari."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.datasets import Converted
from slicepilot.cli.shared.output import note, print_json, say
from slicepilot.cli.shared.streams import STDOUT, refuse_stdout, require_single
from slicepilot.configs import ConfigError

from .paths import print_left_out, write_any_episodes, writing_to

if TYPE_CHECKING:
    from slicepilot.data.episodes.episodes import EpisodeSet

PARQUET, CSV = ".parquet", ".csv"


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="File or folder to convert.", show_default=False)],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="File or folder to write; - prints CSV.", show_default=False)
    ],
    reward: Annotated[str, typer.Option(help="Reward weights for records: a name or a YAML file.")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Convert a table or episodes to another format.

    An imported table becomes NAME.csv. Episodes (Parquet, Minari, or the records of
    a controller) become NAME.parquet or a Minari dataset, a folder NAME-vN.

    Example: slicepilot dataset convert episodes.parquet slices-v0
    """
    from slicepilot.training.recording.reading import what_is

    require_single(target, as_json, "out")
    if target != STDOUT and target.exists():
        raise ConfigError(f"out = {str(target)!r}: exists; expected a new path")
    what = what_is(source)
    if what == "folder":
        raise ConfigError(f"in = {str(source)!r}: a folder; expected a file")
    if what == "file":
        raise ConfigError(f"in = {str(source)!r}: neither a table nor episodes; `dataset import` reads releases")
    with writing_to(target.parent):
        document = (_convert_table if what == "tidy" else _convert_episodes)(source, target, reward)
    if as_json:
        print_json(document, Converted)
    elif target != STDOUT:
        say(f"{target}: {document['kind']}, {document['rows']:,} rows")


def read_any_episodes(path: Path, reward: str = "default") -> EpisodeSet:
    """As `slicepilot.training.recording.reading.read_any_episodes`; files that are left out are named."""
    from slicepilot.training.recording import reading

    print_left_out(path)
    return reading.read_any_episodes(path, reward, note)


def _convert_episodes(source: Path, target: Path, reward: str) -> dict[str, Any]:
    refuse_stdout(target, "NAME.parquet or NAME-vN")
    if target.suffix not in {PARQUET, ""}:
        raise ConfigError(f"out = {str(target)!r}: expected NAME.parquet for episodes, or NAME-vN for Minari")
    episodes = read_any_episodes(source, reward)
    write_any_episodes(episodes, target)
    return {"path": str(target), "kind": "episodes", "episodes": len(episodes), "rows": episodes.num_steps}


def _convert_table(source: Path, target: Path, reward: str) -> dict[str, Any]:
    from slicepilot.data.tables.tidy import read_description, read_tidy, write_csv

    del reward
    if target == STDOUT:
        write_csv(read_tidy(source), sys.stdout.buffer)
        return {}
    if target.suffix != CSV:
        raise ConfigError(f"out = {str(target)!r}: expected NAME.csv for a table")
    rows = write_csv(read_tidy(source), target)
    return {"path": str(target), "kind": read_description(source).kind, "rows": rows}
