"""``slicepilot dataset import``: files of a release, or a user's own by a map, to tidy tables and episodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.datasets import Imported
from slicepilot.cli.shared.default_paths import numbered
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar, say
from slicepilot.configs import ConfigError

from .missing import print_missing
from .paths import (
    ConditionOption,
    KindOption,
    QfiOption,
    UeOption,
    UnitOption,
    options_of,
    report_unusable,
    require_files,
    shown_few,
    with_provenance,
    writing_to,
)
from .releases import print_known
from .validate import print_faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress

    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.data.own.map import DataMap
    from slicepilot.data.own.rows import Rows
    from slicepilot.data.studies.kinds import Kind, Options
    from slicepilot.data.tables.tidy import Description

EPISODES = "andrade-episodes.parquet"


def import_files(
    paths: Annotated[list[Path], typer.Argument(help="Files, and folders to search for files.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Output folder for the tables.", show_default=False)],
    kind: KindOption = None,
    unit: UnitOption = None,
    qfi: QfiOption = None,
    condition: ConditionOption = None,
    ue: UeOption = None,
    map_file: Annotated[
        Path | None,
        typer.Option("--map", help="Map of your own files, as `dataset map` proposes it; they become a single table."),
    ] = None,
    reward: Annotated[str, typer.Option(help="Reward weights of episodes: a name or a YAML file.")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Convert files of a release, or your own by a map, to tidy Parquet tables, and where they suffice to episodes.

    Unusable rows are left out, counted, and recorded in the table with their lines. An existing table is replaced
    only by a table from the same file. Exit code 2: a file is unusable; the others are imported.

    Example: slicepilot dataset import datasets/moreira --out tables
    """
    from slicepilot.data.studies.kinds import find

    options = options_of(unit, qfi, condition, ue)
    made: dict[Path, Description] = {}
    others: list[Path] = []
    unusable: list[str] = []
    if map_file is not None:
        of_releases = {"kind": kind, "unit": unit, "qfi": qfi, "condition": condition, "ue": ue}
        for name, value in of_releases.items():
            if value not in (None, []):
                raise ConfigError(f"{name} = {value!r}: for releases only; accepted without --map")
        joined = _import_mapped(map_file, paths, out, reward, made)
    else:
        result, others, unusable = _files(paths, None if kind is None else find(kind))
        replaced: set[Path] = set()
        with writing_to(out), progress_bar() as progress:
            for path, own in result:
                try:
                    target = _free(out, own, path, options, made)
                    replaced |= {target} if target.exists() else set()
                    made[target] = _import(path, own, options, target, progress)
                except ConfigError as error:
                    unusable.append(str(error))
            progress.add_task("episodes", total=None)
            joined = _join(made, replaced, out, reward)
    if as_json:
        print_json(_document(made, others, unusable, joined), Imported)
    else:
        _print(made, others, joined)
    report_unusable(unusable)


def _files(paths: list[Path], chosen: Kind | None) -> tuple[list[tuple[Path, Kind]], list[Path], list[str]]:
    """Files to read, each with its kind; those of no known kind; and what is wrong with those that are unusable.

    A file that is named has to be of a known kind, unless it is a README or the like beside others: a shell's
    ``clone/*`` names them all.
    """
    from slicepilot.data.studies.kinds import detect, detected, files_below, is_paperwork

    result: list[tuple[Path, Kind]] = []
    others: list[Path] = []
    unusable: list[str] = []
    for path in files_below(paths):
        if is_paperwork(path) and paths != [path]:
            others.append(path)
            continue
        try:
            own = chosen or (detected(path) if path in paths else detect(path))
        except ConfigError as error:
            unusable.append(str(error))
            continue
        if own is None:
            others.append(path)
        else:
            result.append((path, own))
    if not result and not unusable:
        shown = ", ".join(map(str, paths))
        raise ConfigError(f"paths = {shown}: no file of a known kind; `dataset list` shows the known releases")
    return result, others, unusable


def _free(out: Path, kind: Kind, path: Path, options: Options, made: dict[Path, Description]) -> Path:
    """The table's name: kind, what distinguishes the file, and a number where that is not enough.

    A table of an earlier import keeps its name unless it was made of the same file.
    """
    from slicepilot.data.tables.tidy import is_made_of

    stem = "-".join(filter(None, [kind.name, kind.label(path, options)]))

    def taken(table: Path) -> bool:
        return table in made or (table.exists() and not is_made_of(table, path))

    return numbered(out / stem, ".parquet", taken)


def _import(path: Path, kind: Kind, options: Options, target: Path, progress: Progress) -> Description:
    from slicepilot.data.faults import Faults
    from slicepilot.data.studies.releases import find
    from slicepilot.data.tables.tidy import Origin, write_tidy

    release, faults = find(kind.release), Faults()
    task = progress.add_task(path.name, total=1.0)
    try:
        stream = kind.read(path, faults, options, lambda share: progress.update(task, completed=share))
        origin = Origin(kind.name, path, release.citation, release.licence)
        return write_tidy(target, stream, origin, faults)
    finally:
        progress.remove_task(task)


def _join(made: dict[Path, Description], replaced: set[Path], out: Path, reward: str) -> dict[str, Any] | None:
    """Make episodes of Andrade's tables, if there is a table of each collection that they need.

    Episodes of an earlier import are replaced only if all of these tables were replaced.
    """
    from slicepilot.data.studies.andrade.units import COLLECTIONS

    tables = {name: [path for path, own in made.items() if own.kind == f"andrade-{name}"] for name in COLLECTIONS}
    if len(tables["latency"]) != 1 or len(tables["receive"]) != 1 or len(tables["cpu"]) > 1:
        return None if any(tables.values()) else _lacking(made, out)
    from slicepilot.data.tables.tidy import read_tidy
    from slicepilot.env.reward import RewardWeights
    from slicepilot.training.recording.andrade import to_episodes

    weights, path = RewardWeights.from_yaml(reward), out / EPISODES
    own = {out / f"andrade-{name}.parquet" for name, paths in tables.items() if paths}
    if path.exists() and not own <= replaced:
        return {"path": str(path), "problem": "exists, perhaps from other files; give another --out"}
    try:
        joined = to_episodes({name: read_tidy(paths[0]) for name, paths in tables.items() if paths}, weights)
    except ConfigError as error:
        return {"path": str(path), "problem": str(error)}
    return _write(joined.episodes, path) | {"runs": joined.runs, "points_left_out": joined.left_out}


def _write(episodes: EpisodeSet, path: Path) -> dict[str, Any]:
    from slicepilot.data.episodes.files import write_episodes
    from slicepilot.data.episodes.missing import missing_of

    write_episodes(episodes, path)
    missing = missing_of(episodes)
    return {"path": str(path), "episodes": len(episodes), "steps": episodes.num_steps, "missing": missing}


def _lacking(made: dict[Path, Description], out: Path) -> dict[str, Any] | None:
    """Why tables of other studies do not become episodes."""
    from slicepilot.data.own.needs import lacking
    from slicepilot.data.tables.tidy import read_tidy

    lacks = {own.kind: lacking(read_tidy(path).schema.names) for path, own in made.items()}
    if not lacks:
        return None
    what = "; ".join(f"{kind} lacks {', '.join(names)}" for kind, names in lacks.items())
    problem = f"{what}; promises of slices are in none. `dataset map` of a table declares what can be declared"
    return {"path": str(out / "episodes.parquet"), "problem": problem}


def _import_mapped(
    map_file: Path, files: list[Path], out: Path, reward: str, made: dict[Path, Description]
) -> dict[str, Any] | None:
    """Make a table of a user's own files, and episodes if its map says so; all or nothing.

    The table replaces that of an earlier import that was made of the same files.

    Raises:
        ConfigError: a map that is not valid, a file that cannot be used.
    """
    from slicepilot.data.faults import Faults
    from slicepilot.data.own.join import joined
    from slicepilot.data.own.map import KIND, read_map
    from slicepilot.data.own.reading import read_files
    from slicepilot.data.tables.tidy import Origin, is_made_of, write_tidy

    data_map = read_map(map_file)
    require_files(files)
    faults = Faults()
    with progress_bar() as progress:
        progress.add_task("reading", total=None)
        rows = read_files(data_map, files, faults)
        table = joined(rows, data_map.period_s)
        episodes = None if data_map.episodes is None else _mapped_episodes(data_map, map_file, rows, reward)
        with writing_to(out):
            target = numbered(
                out / data_map.name, ".parquet", lambda table: table.exists() and not is_made_of(table, *files)
            )
            made[target] = write_tidy(target, table, Origin(KIND, files[0], others=tuple(files[1:])), faults)
            return None if episodes is None else _write(episodes, target.with_stem(f"{target.stem}-episodes"))


def _mapped_episodes(data_map: DataMap, map_file: Path, rows: list[Rows], reward: str) -> EpisodeSet:
    """Episodes as the map's section says; raises ConfigError with what the table lacks for them."""
    from slicepilot.data.own.join import joined
    from slicepilot.env.reward import RewardWeights
    from slicepilot.training.recording.own_files import read_spec, to_episodes

    spec = read_spec(data_map.episodes or {}, str(map_file), data_map.period_s)
    return with_provenance(to_episodes(joined(rows, spec.period_s), spec, RewardWeights.from_yaml(reward)))


def _as_known(own: Description) -> bool | None:
    """Whether a table's file is the release's as it is known; None where nothing is known of it."""
    from slicepilot.data.own.map import KIND
    from slicepilot.data.studies.kinds import find as kind_by_name
    from slicepilot.data.studies.releases import find

    if own.kind == KIND:
        return None
    release = find(kind_by_name(own.kind).release)
    return release.as_known(own.source["name"], own.source["bytes"], own.source["sha256"])


def _document(
    made: dict[Path, Description], others: Sequence[Path], unusable: list[str], joined: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "tables": [
            {"path": str(path)} | vars(own) | {"groups": list(own.groups), "as_known": _as_known(own)}
            for path, own in made.items()
        ],
        "episodes": joined,
        "not_read": [str(path) for path in others],
        "unusable": unusable,
    }


def _print(made: dict[Path, Description], others: Sequence[Path], joined: dict[str, Any] | None) -> None:
    if made:
        table = figures_table("imported", ("table", "rows", "left out", "faults"))
        for path, own in made.items():
            table.add_row(path.name, f"{own.rows:,}", f"{own.faults['left_out']:,}", f"{own.faults['total']:,}")
        console.print(table)
    for own in made.values():
        print_known(own.source["name"], _as_known(own))
    if joined is not None and "problem" in joined:
        say(f"no {joined['path']}: {joined['problem']}")
    elif joined is not None:
        runs = f" of {joined['runs']} runs" if "runs" in joined else ""
        say(f"{joined['path']}: {joined['episodes']} episodes{runs}, {joined['steps']:,} steps")
        if joined.get("points_left_out"):
            say(f"  {joined['points_left_out']:,} points left out, of runs without a step that could be scored")
        print_missing(joined["missing"])
    for path, own in made.items():
        if own.faults["total"] or own.faults["notes"]:
            say(f"{own.source['name']} -> {path}")
            print_faults(own.faults)
    if others:
        say(f"not read, of no known kind: {shown_few(others)}")
