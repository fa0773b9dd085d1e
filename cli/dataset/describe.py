"""``slicepilot dataset describe``: what is in a file or dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.datasets import DescribedEpisodes, DescribedTable
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar
from slicepilot.configs import ConfigError

from .convert import read_any_episodes
from .missing import print_missing
from .paths import ConditionOption, KindOption, QfiOption, UnitOption, kind_of, options_of, what_is
from .releases import print_fact, shown_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slicepilot.data.studies.kinds import Options
    from slicepilot.data.tables.summary import Summary
    from slicepilot.data.tables.tidy import Stream

SHOWN_GROUPS = 12


def describe(
    path: Annotated[Path, typer.Argument(help="File or folder to read.", show_default=False)],
    kind: KindOption = None,
    unit: UnitOption = None,
    qfi: QfiOption = None,
    condition: ConditionOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show rows, columns with units and ranges, groups and faults; for episodes, behaviours and rewards.

    Accepts an imported table, a file of a release, episodes, a Minari dataset, or the records of a controller. For
    the published studies it also recomputes the study's table; for episodes it lists what was not measured.

    Example: slicepilot dataset describe tables/andrade-cpu.parquet
    """
    what = what_is(path)
    if what == "folder":
        raise ConfigError(f"path = {str(path)!r}: a folder; expected one file (`dataset validate` takes folders)")
    if what in {"episodes", "minari", "records"}:
        document = _episodes(path, what)
        show = _print_episodes
    else:
        document = _table(path, kind, options_of(unit, qfi, condition, None))
        show = _print_table
    if as_json:
        print_json(document, DescribedEpisodes if show is _print_episodes else DescribedTable)
    else:
        show(document)


def _table(path: Path, kind: str | None, options: Options) -> dict[str, Any]:
    """A tidy table, or what would become one."""
    from slicepilot.data.faults import Faults
    from slicepilot.data.studies.releases import find
    from slicepilot.data.tables.summary import summarise
    from slicepilot.data.tables.tidy import read_description, read_tidy

    with progress_bar() as progress:
        task = progress.add_task(path.name, total=1.0)
        if what_is(path) == "tidy":
            own = read_description(path)
            rows = max(own.rows, 1)
            stream, study = _with_study(read_tidy(path), own.kind, own.source["name"])
            summary = summarise(stream, lambda seen: progress.update(task, completed=seen / rows))
            document = _document(path, own.kind, summary, own.faults, own.citation, own.licence, own.source)
            return document | study()
        faults = Faults()
        result = kind_of(path, kind)
        given = result.read(path, faults, options, lambda share: progress.update(task, completed=share))
        stream, study = _with_study(given, result.name, path.name)
        summary = summarise(stream)
        release = find(result.release)
        source = {"name": path.name, "bytes": path.stat().st_size}
        document = _document(path, result.name, summary, faults.to_json(), release.citation, release.licence, source)
        return document | study()


def _with_study(stream: Stream, kind: str, name: str) -> tuple[Stream, Callable[[], dict[str, Any]]]:
    """The same rows, and what gives ``study`` of them once they have gone by, where the kind has it."""
    from slicepilot.data.studies.kinds import find
    from slicepilot.data.tables.tidy import Stream

    make = find(kind).study
    if make is None:
        return stream, dict
    study = make(stream.schema, name)

    def batches() -> Iterator[Any]:
        for batch in stream.batches:
            study.add(batch)
            yield batch

    return Stream(stream.schema, batches(), stream.groups), lambda: {"study": study.published()}


def _document(
    path: Path,
    kind: str,
    summary: Summary,
    faults: dict[str, Any],
    citation: str | None,
    licence: str | None,
    source: dict[str, Any],
) -> dict[str, Any]:
    facts = {"path": str(path), "kind": kind, "source": source, "citation": citation, "licence": licence}
    return facts | summary.to_json() | {"faults": faults}


def _print_table(document: dict[str, Any]) -> None:
    _say(f"{document['path']}: {document['kind']}, {document['rows']:,} rows")
    columns = document["columns"]
    holes = any(own["nulls"] for own in columns.values())
    table = figures_table("columns", ("column", "unit", "from", "to", *(("empty",) if holes else ())))
    for name, own in columns.items():
        empty = [f"{own['nulls']:,}" if own["nulls"] else ""] if holes else []
        table.add_row(name, own["unit"] or "", _shown(own["min"]), _shown(own["max"]), *empty)
    console.print(table)
    for name, counts in document["groups"].items():
        print_fact(name, _shown_groups(counts))
    if rows := document.get("study"):
        table = figures_table("as the study's table", tuple(rows[0]))
        for row in rows:
            table.add_row(*(f"{cell:,}" if isinstance(cell, int) else _shown(cell) for cell in row.values()))
        console.print(table)
    source = document["source"]
    digest = f", SHA-256 {source['sha256'][:16]}..." if "sha256" in source else ""
    print_fact("source", f"{source['name']}, {shown_bytes(source['bytes'])}{digest}")
    if document["citation"]:
        print_fact("cite", document["citation"])
        print_fact("licence", document["licence"] or "none known")
    faults = document["faults"]
    if not faults["total"]:
        print_fact("faults", "none")
        return
    kinds = ", ".join(f"{kind} {own['count']:,}" for kind, own in faults["kinds"].items())
    print_fact("faults", f"{kinds}; {faults['left_out']:,} rows left out; see `dataset validate`")


def _episodes(path: Path, what: str) -> dict[str, Any]:
    import numpy as np

    from slicepilot.data.episodes.missing import missing_of

    episodes = read_any_episodes(path)
    behaviours = []
    for name in episodes.behaviours:
        own = episodes.of(name)
        rewards = np.concatenate([episode.rewards for episode in own])
        known = np.isfinite(rewards)
        densities = np.concatenate([episode.log_density for episode in own])
        behaviours.append(
            {
                "behaviour": name,
                "episodes": len(own),
                "steps": own.num_steps,
                "reward_mean": float(rewards[known].mean(dtype=np.float64)) if known.any() else None,
                "densities": int(np.isfinite(densities).sum()),
            }
        )
    first = episodes.episodes[0]
    return {
        "path": str(path),
        "kind": what,
        "episodes": len(episodes),
        "steps": episodes.num_steps,
        "observation": list(first.observations.shape[1:]),
        "action": list(first.actions.shape[1:]),
        "decisions": sorted(first.decisions),
        "behaviours": behaviours,
        "missing": [item.to_json() for item in missing_of(episodes)],
        "facts": dict(episodes.facts),
    }


def _print_episodes(document: dict[str, Any]) -> None:
    _say(f"{document['path']}: {document['kind']}, {document['episodes']:,} episodes, {document['steps']:,} steps")
    table = figures_table("who acted", ("behaviour", "episodes", "steps", "reward/step", "known densities"))
    for own in document["behaviours"]:
        reward = "" if own["reward_mean"] is None else f"{own['reward_mean']:.4f}"
        table.add_row(own["behaviour"], f"{own['episodes']:,}", f"{own['steps']:,}", reward, f"{own['densities']:,}")
    console.print(table)
    print_missing(document["missing"])
    facts = document["facts"]
    slices = ", ".join(str(spec.get("name")) for spec in facts.get("slices", []))
    print_fact("slices", slices or "not said")
    print_fact("period", f"{facts['period_s']:g} s" if "period_s" in facts else "not said")
    print_fact("shapes", f"observation {document['observation']}, action {document['action']}")
    print_fact("kept", ", ".join(document["decisions"]) or "no further columns")
    if stand_ins := facts.get("stand_ins"):
        print_fact("but", "; ".join(f"{name}: {what}" for name, what in stand_ins.items()))


def _shown(value: Any) -> str:
    if value is None:
        return ""
    # A time takes two lines, or names would be cut.
    return f"{value:.6g}" if isinstance(value, float) else f"{value}".replace(" ", "\n")


def _shown_groups(counts: dict[str, int] | None) -> str:
    if counts is None:
        return "too many values"
    shown = [f"{name}: {count:,}" for name, count in list(counts.items())[:SHOWN_GROUPS]]
    more = [f"and {len(counts) - SHOWN_GROUPS} more"] if len(counts) > SHOWN_GROUPS else []
    return ", ".join([*shown, *more])


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
