"""``slicepilot dataset import --map``: make a table of a user's own files, and episodes if they suffice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicepilot.cli.schemas.datasets import Imported
from slicepilot.cli.shared.default_paths import numbered
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar, say

from .missing import print_missing
from .paths import require_files, writing_to
from .validate import print_faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress

    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.data.own.map import DataMap
    from slicepilot.data.own.rows import Rows
    from slicepilot.data.tables.tidy import Description


def import_mapped(map_file: Path, paths: list[Path], out: Path, reward: str, *, as_json: bool) -> None:
    """Import files by a map; all or nothing.

    Raises:
        ConfigError: a map that is not valid, a file that cannot be used.
    """
    from slicepilot.data.own.map import read_map

    data_map = read_map(map_file)
    require_files(paths)
    with progress_bar() as progress:
        target, description, episodes = _import(data_map, map_file, paths, out, reward, progress)
    document: dict[str, Any] = {
        "tables": [{"path": str(target)} | vars(description) | {"groups": list(description.groups), "as_known": None}],
        "episodes": episodes,
        "not_read": [],
        "unusable": [],
    }
    if as_json:
        print_json(document, Imported)
    else:
        _print(target, description, episodes)


def _import(
    data_map: DataMap, map_file: Path, files: list[Path], out: Path, reward: str, progress: Progress
) -> tuple[Path, Description, dict[str, Any] | None]:
    """Write the table; it replaces a table of an earlier import that was made of the same files."""
    from slicepilot.data.faults import Faults
    from slicepilot.data.own.join import joined
    from slicepilot.data.own.map import KIND
    from slicepilot.data.own.reading import read_files
    from slicepilot.data.tables.tidy import Origin, is_made_of, write_tidy

    faults = Faults()
    tasks = {path: progress.add_task(path.name, total=1.0) for path in files}

    def on_progress(path: Path) -> Callable[[float], None]:
        return lambda share: progress.update(tasks[path], completed=share)

    rows = read_files(data_map, files, faults, on_progress)
    table = joined(rows, data_map.period_s)
    episodes = None if data_map.episodes is None else _episodes(data_map, map_file, rows, reward)
    with writing_to(out):
        target = numbered(
            out / data_map.name, ".parquet", lambda table: table.exists() and not is_made_of(table, *files)
        )
        made = write_tidy(target, table, Origin(KIND, files[0], others=tuple(files[1:])), faults)
        return target, made, None if episodes is None else _write(episodes, target.with_stem(f"{target.stem}-episodes"))


def _episodes(data_map: DataMap, map_file: Path, rows: list[Rows], reward: str) -> EpisodeSet:
    """Episodes as the map's section says; raises ConfigError with what the table lacks for them."""
    import shlex
    import sys
    from dataclasses import asdict

    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.data.own.join import joined
    from slicepilot.env.reward import RewardWeights
    from slicepilot.training.evaluation.results import Provenance
    from slicepilot.training.recording.own_files import read_spec, to_episodes

    spec = read_spec(data_map.episodes or {}, str(map_file), data_map.period_s)
    made = to_episodes(joined(rows, spec.period_s), spec, RewardWeights.from_yaml(reward))
    provenance = asdict(Provenance.here(shlex.join(["slicepilot", *sys.argv[1:]])))
    return EpisodeSet(made.episodes, {**made.facts, **provenance})


def _write(episodes: EpisodeSet, path: Path) -> dict[str, Any]:
    from slicepilot.data.episodes.files import write_episodes
    from slicepilot.data.episodes.missing import missing_of

    write_episodes(episodes, path)
    missing = missing_of(episodes)
    return {"path": str(path), "episodes": len(episodes), "steps": episodes.num_steps, "missing": missing}


def _print(target: Path, own: Description, episodes: dict[str, Any] | None) -> None:
    table = figures_table("imported", ("table", "rows", "left out", "faults"))
    table.add_row(target.name, f"{own.rows:,}", f"{own.faults['left_out']:,}", f"{own.faults['total']:,}")
    console.print(table)
    print_faults(own.faults)
    if episodes is not None:
        say(f"{episodes['path']}: {episodes['episodes']} episodes, {episodes['steps']:,} steps")
        print_missing(episodes["missing"])
