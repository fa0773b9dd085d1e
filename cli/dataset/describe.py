"""``slicepilot dataset describe``: statistics of a table's columns, of all rows or of groups."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.datasets import Described
from slicepilot.cli.shared.output import console, figures_table, print_json, say
from slicepilot.configs import ConfigError

if TYPE_CHECKING:
    from slicepilot.data.tables.tidy import Stream

MOST_GROUPS = 200
WhereOption = Annotated[
    list[str] | None, typer.Option(help='Condition on rows, such as "slice=a" or "time_s>=60"; may be repeated.')
]
ByOption = Annotated[list[str] | None, typer.Option(help="Column that makes groups; may be repeated.")]


def describe(
    path: Annotated[Path, typer.Argument(help="A table, or a folder with a single table.", show_default=False)],
    by: ByOption = None,
    where: WhereOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show rows, missing values, mean and quantiles of each column of numbers of an imported table.

    Example: slicepilot dataset describe tables/own.parquet --by slice --by run --where "time_s>=60"
    """
    from slicepilot.data.tables.selection import Condition, selected
    from slicepilot.data.tables.tidy import read_tidy

    table = _table_at(path)
    conditions = [Condition.parse(text) for text in where or ()]
    stream = selected(read_tidy(table), conditions, by or ())
    columns = _summary(stream, by or [])
    document = {
        "path": str(table),
        "rows": sum({column["group"]: column["rows"] for column in columns}.values()),
        "by": by or [],
        "where": [str(condition) for condition in conditions],
        "columns": columns,
    }
    if as_json:
        print_json(document, Described)
    else:
        _print(document)


def _table_at(path: Path) -> Path:
    from slicepilot.training.recording.reading import what_is

    what = what_is(path)
    if what == "tidy":
        return path
    if what == "folder":
        tables = [file for file in sorted(path.glob("*.parquet")) if what_is(file) == "tidy"]
        if len(tables) == 1:
            return tables[0]
        names = ", ".join(file.name for file in tables[:5]) or "none"
        raise ConfigError(f"path = {str(path)!r}: a folder with the tables {names}; expected a single table")
    raise ConfigError(f"path = {str(path)!r}: {what}; expected a table of `dataset import`")


def _summary(stream: Stream, by: list[str]) -> list[dict[str, Any]]:
    """A row for each group and column of numbers."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute

    from slicepilot.data.tables.selection import TOGETHER
    from slicepilot.training.statistics.columns import in_order

    compute: Any = pyarrow.compute

    whole = pa.Table.from_batches(list(stream.batches), stream.schema)
    if not whole.num_rows:
        raise ConfigError("where: no row is left; expected conditions that some fit")
    numbers = [f.name for f in whole.schema if pa.types.is_floating(f.type) or pa.types.is_integer(f.type)]
    numbers = [name for name in numbers if name not in by]
    masks: dict[str, Any] = {"": None}
    if by:
        key = TOGETHER.join(by)
        if key not in whole.schema.names:
            raise ConfigError(f"by = {key!r}: expected {', '.join(whole.schema.names)}")
        words = whole.column(key)
        words = words.cast(words.type.value_type) if pa.types.is_dictionary(words.type) else words
        words = words.cast(pa.string())
        names = in_order(str(name) for name in compute.unique(words).to_pylist() if name is not None)
        if len(names) > MOST_GROUPS:
            raise ConfigError(f"by = {key!r}: {len(names):,} groups; expected at most {MOST_GROUPS}")
        masks = {name: compute.fill_null(compute.equal(words, name), False) for name in names}
    result = []
    for group, mask in masks.items():
        part = whole if mask is None else whole.filter(mask)
        for name in numbers:
            column = part.column(name).cast(pa.float64()).fill_null(float("nan"))
            values = np.asarray(column.to_numpy(), np.float64)
            result.append({"group": group, "column": name, "rows": part.num_rows} | _figures(values))
    return result


def _figures(values: Any) -> dict[str, Any]:
    import numpy as np

    known = values[np.isfinite(values)]
    figures: dict[str, Any] = {"n": len(known), "unlimited": int(np.isinf(values).sum())}
    figures["missing"] = len(values) - len(known) - figures["unlimited"]
    names = ("mean", "min", "p50", "p99", "max")
    if not len(known):
        return figures | dict.fromkeys(names)
    own = (known.mean(), known.min(), *np.quantile(known, (0.5, 0.99)), known.max())
    return figures | dict(zip(names, map(float, own), strict=True))


def _print(document: dict[str, Any]) -> None:
    where = f", where {' and '.join(document['where'])}" if document["where"] else ""
    say(f"{document['path']}: {document['rows']:,} rows{where}")
    names = ("n", "missing", "mean", "min", "p50", "p99", "max")
    groups = {row["column"]: document["by"] for row in document["columns"]} if document["by"] else {"columns": []}
    for column, by in groups.items():
        table = figures_table(column, (", ".join(by) or "column", *names))
        for row in document["columns"]:
            if not by or row["column"] == column:
                cells = ["" if row[name] is None else f"{row[name]:.4g}" for name in names[2:]]
                table.add_row(row["group"] if by else row["column"], f"{row['n']:,}", f"{row['missing']:,}", *cells)
        console.print(table)
