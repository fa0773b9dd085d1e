"""``slicepilot dataset validate``: contents and faults of files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.datasets import Validated
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar, say
from slicepilot.configs import ConfigError

from .convert import read_any_episodes
from .missing import print_missing
from .paths import (
    ConditionOption,
    KindOption,
    QfiOption,
    UnitOption,
    options_of,
    report_unusable,
    shown_few,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.data.faults import Faults
    from slicepilot.data.studies.kinds import Options
    from slicepilot.data.tables.tidy import Stream


def validate(
    path: Annotated[Path, typer.Argument(help="File or folder to read.", show_default=False)],
    kind: KindOption = None,
    unit: UnitOption = None,
    qfi: QfiOption = None,
    condition: ConditionOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read files completely and list their faults by line. Exit code 1: faults; 2: a file is unusable.

    Accepts files of a release, imported tables, episodes, Minari datasets, records of a controller, and folders. For
    the published studies it also recomputes the study's table; for episodes it lists behaviours, rewards and what was
    not measured.

    Example: slicepilot dataset validate o1_forwarding_exp_light.csv
    """
    from slicepilot.training.recording.reading import what_is

    options = options_of(unit, qfi, condition, None)
    checked: list[dict[str, Any]] = []
    unusable: list[str] = []
    others: list[Path] = []
    with progress_bar() as progress:
        if path.is_dir() and what_is(path) == "folder":
            from slicepilot.data.studies.kinds import detect, files_below
            from slicepilot.data.tables.tidy import is_parquet

            for file in files_below([path]):
                try:
                    if is_parquet(file) or kind or detect(file):
                        checked.append(_check(file, kind, options, progress))
                    else:
                        others.append(file)
                except ConfigError as error:
                    unusable.append(str(error))
        else:
            try:
                checked.append(_check(path, kind, options, progress))
            except ConfigError as error:
                unusable.append(str(error))
    if not checked and not unusable:
        raise ConfigError(f"path = {str(path)!r}: no file of a known kind; `dataset list` shows the known releases")
    if as_json:
        document = {"checked": checked, "unusable": unusable, "not_checked": [str(file) for file in others]}
        print_json(document, Validated)
    else:
        for item in checked:
            _print_check(item)
        if others:
            say(f"not checked, of no known kind: {shown_few(others)}")
    report_unusable(unusable)
    if any(item["faults"]["total"] for item in checked):
        raise typer.Exit(1)


def _check(path: Path, kind: str | None, options: Options, progress: Progress) -> dict[str, Any]:
    """The contents and faults of a file or dataset."""
    from slicepilot.data.faults import Faults
    from slicepilot.data.studies.kinds import detected, find
    from slicepilot.training.recording.reading import what_is

    what = what_is(path)
    faults = Faults()
    if what in {"episodes", "minari", "records"}:
        document = {"path": str(path), "kind": what} | _check_episodes(read_any_episodes(path), faults)
        return document | {"faults": faults.to_json()}
    task = progress.add_task(path.name, total=1.0)
    try:
        if what == "tidy":
            from slicepilot.data.tables.tidy import read_description, read_tidy

            description = read_description(path)
            figures = _figures(read_tidy(path), description.kind, description.source["name"])
            if figures["rows"] != description.rows:
                raise ConfigError(
                    f"path = {str(path)!r}: {figures['rows']} rows; expected {description.rows}, as it says"
                )
            return {"path": str(path), "kind": description.kind, "faults": description.faults} | figures
        own = detected(path) if kind is None else find(kind)
        stream = own.read(path, faults, options, lambda share: progress.update(task, completed=share))
        figures = _figures(stream, own.name, path.name)
        return {"path": str(path), "kind": own.name, "faults": faults.to_json()} | figures
    finally:
        progress.remove_task(task)


def _figures(stream: Stream, kind: str, name: str) -> dict[str, Any]:
    """The number of rows and, for kinds whose study has published a table, that table recomputed from them."""
    from slicepilot.data.own.map import KIND
    from slicepilot.data.studies.kinds import find

    make, rows = None if kind == KIND else find(kind).study, 0
    study = None if make is None else make(stream.schema, name)
    for batch in stream.batches:
        rows += batch.num_rows
        if study is not None:
            study.add(batch)
    return {"rows": rows} if study is None else {"rows": rows, "study": study.published()}


def _check_episodes(episodes: EpisodeSet, faults: Faults) -> dict[str, Any]:
    from slicepilot.data.episodes.checks import check_episodes
    from slicepilot.data.episodes.missing import missing_of, reward_of

    check_episodes(episodes, faults)
    behaviours = [
        {"behaviour": name, "episodes": len(own), "steps": own.num_steps, "reward_mean": reward_of(own)}
        for name, own in ((name, episodes.of(name)) for name in episodes.behaviours)
    ]
    missing = missing_of(episodes)
    return {"rows": episodes.num_steps, "behaviours": behaviours, "missing": missing}


def _print_check(item: dict[str, Any]) -> None:
    faults = item["faults"]
    result = f"{faults['total']:,} faults, {faults['left_out']:,} rows left out" if faults["total"] else "no faults"
    say(f"{item['path']}: {item['kind']}, {item['rows']:,} rows, {result}")
    print_faults(faults)
    # A study's table, or a row for each behaviour.
    if rows := item.get("study") or item.get("behaviours"):
        table = figures_table("the study's table" if "study" in item else "behaviours", tuple(rows[0]))
        for row in rows:
            table.add_row(*map(_cell, row.values()))
        console.print(table)
    print_missing(item.get("missing", ()))


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def print_faults(faults: dict[str, Any]) -> None:
    """Each kind of `slicepilot.data.faults.Faults.to_json`, how many there are, and where the first of them are."""
    from rich.padding import Padding
    from rich.text import Text

    from slicepilot.data.faults import MEANINGS

    for text in faults.get("notes", ()):
        say(f"  {text}")
    for kind, own in faults["kinds"].items():
        lines = ", ".join(str(fault["line"]) for fault in own["first"])
        lines = f"lines {lines}" if own["count"] > 1 else f"line {lines}"
        more = ", ..." if own["count"] > len(own["first"]) else ""
        first = own["first"][0]
        example = " = ".join(part for part in (first["column"], first["value"]) if part)
        say(f"  {kind}: {own['count']:,} {MEANINGS.get(kind, '')}".rstrip() + (f" ({example})" if example else ""))
        console.print(Padding(Text(lines + more), (0, 0, 0, 4)))
