"""``dataset map``, ``import --map``, ``describe`` and ``analyse`` with conditions, from outside."""

from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.command import slicepilot


def run(*arguments: object) -> CompletedProcess[str]:
    return slicepilot("dataset", *arguments, env=os.environ | {"COLUMNS": "100"})


def printed(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of two slices under two loads."""
    folder = tmp_path_factory.mktemp("own")
    rows = [
        f"{n},{s},{load},{10 * (k + 1) + n % 7 + 100 * (load == 'high')}"
        for n in range(40)
        for k, s in enumerate(("a", "b"))
        for load in ("low", "high")
    ]
    (folder / "d.csv").write_text("time_s,slice,load,delay_us\n" + "\n".join(rows) + "\n")
    assert printed("map", folder / "d.csv", "--out", folder / "map.yaml")["rows"] == 160
    [table] = printed("import", "--map", folder / "map.yaml", folder / "d.csv", "--out", folder / "t")["tables"]
    assert (table["kind"], table["rows"], table["groups"]) == ("own", 160, ["slice", "load"])
    return folder


def test_a_table_is_described_by_groups_under_conditions(imported: Path) -> None:
    document = printed("describe", imported / "t", "--by", "slice", "--by", "load", "--where", "time_s>=30")
    assert document["rows"] == 40
    found = {row["group"]: row["p50"] for row in document["columns"] if row["column"] == "delay_us"}
    assert list(found) == ["a, high", "a, low", "b, high", "b, low"]
    assert found["b, high"] - found["b, low"] == 100
    assert "delay_us" in run("describe", imported / "t").stdout
    assert printed("validate", imported / "t" / "own.parquet")["checked"][0]["rows"] == 160


def test_delays_are_analysed_by_several_columns_under_conditions(imported: Path, tmp_path: Path) -> None:
    options = ["--by", "slice", "--by", "load", "--where", "slice=a", "--resamples", 100, "--out", tmp_path / "r"]
    document = printed("analyse", imported / "t", *options)
    assert document["by"] == "slice+load"
    assert [group["slice+load"] for group in document["groups"]] == ["a, high", "a, low"]
    assert document["rows"] == 80


def test_files_that_a_table_was_made_of_are_its_groups_by_file(tmp_path: Path) -> None:
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for number, file in enumerate(files):
        rows = [f"{n},slice1,{10 * number + n % 7}" for n in range(1, 41)]
        file.write_text("time_s,slice,delay_us\n" + "\n".join(rows) + "\n")
    printed("map", *files, "--out", tmp_path / "map.yaml")
    assert "keep: [file]" in (tmp_path / "map.yaml").read_text()
    printed("import", "--map", tmp_path / "map.yaml", *files, "--out", tmp_path / "t")
    document = printed("analyse", tmp_path / "t", "--by", "file", "--resamples", 100, "--out", tmp_path / "r")
    assert [(group["file"], group["n"]) for group in document["groups"]] == [("a", 40), ("b", 40)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("describe", "t", "--where", "slise=a"), "column = 'slise': did you mean slice?"),
        (("describe", "t", "--where", "slice"), "where = 'slice': expected COLUMN=VALUE"),
        (("describe", "t", "--where", "delay_us<x"), "where = 'delay_us<x': delay_us holds others; expected a number"),
        (("describe", "t", "--where", "slice=c"), "where: no row is left"),
        (("describe", "t", "--by", "slice", "--by", "lod"), "column = 'lod': did you mean load?"),
        (
            ("import", "--map", "map.yaml", "map.yaml", "--out", "x"),
            "no entry of the map matches; expected one of d.csv",
        ),
        (("import", "--map", "none.yaml", "d.csv", "--out", "x"), "none.yaml"),
        (("map", "t", "--out", "m.yaml"), "path = 't': a folder; expected files"),
    ],
)
def test_bad_input_is_refused_in_a_line(imported: Path, arguments: tuple[str, ...], message: str) -> None:
    result = slicepilot("dataset", *arguments, cwd=imported)
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("quantity: delay_us", "quantty: delay_us", "unknown field; did you mean quantity?"),
        ("format: csv", "format: cvs", "format = 'cvs'"),
        ("unit: us", "unit: uss", "did you mean us?"),
        ("unit: us", "unit: Mbit/s", "does not become µs of delay_us"),
        ("slice: slice", "slice: slic", "column 'slic': did you mean slice?"),
        ("time_unit: s", "time_unit: h", "time_unit = 'h'"),
        ("name: own", "name: ../own", "name = '../own'"),
        ("files:", "fils:", "fils = list: unknown field; did you mean files?"),
    ],
)
def test_slips_in_a_map_are_named_with_the_near_miss(
    imported: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = (imported / "map.yaml").read_text()
    assert old in text
    (tmp_path / "map.yaml").write_text(text.replace(old, new, 1))
    result = run("import", "--map", tmp_path / "map.yaml", imported / "d.csv", "--out", tmp_path / "t")
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert message in line
    assert not (tmp_path / "t").exists()


def test_an_edited_map_is_kept_beside_a_new_proposal(imported: Path, tmp_path: Path) -> None:
    printed("map", imported / "d.csv", "--out", tmp_path / "map.yaml")
    edited = (tmp_path / "map.yaml").read_text() + "# mine\n"
    (tmp_path / "map.yaml").write_text(edited)
    printed("map", imported / "d.csv", "--out", tmp_path / "map.yaml")
    assert (tmp_path / "map.yaml.old").read_text() == edited
    assert run("map", imported / "d.csv", "--out", "-").stdout == (tmp_path / "map.yaml").read_text()


def test_rows_without_a_time_are_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("slice,delay_us\na,5\nb,6\n")
    proposed = run("map", tmp_path / "d.csv", "--out", tmp_path / "map.yaml").stdout
    assert "unsure: d.csv: no time column found (set time: and time_unit:)" in proposed
    assert "Fine as a table. For offline training it also lacks: offered_mbps; " in proposed
    result = run("import", "--map", tmp_path / "map.yaml", tmp_path / "d.csv", "--out", tmp_path / "t")
    assert "d.csv: rows have no time" in result.stdout
