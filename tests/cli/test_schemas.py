"""What commands print fits the shapes that the site's page of commands is generated from."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import typer

from slicepilot.cli import main
from slicepilot.cli.reference import COMMON, PRINTED, load_commands
from slicepilot.cli.schemas import bench, datasets, evaluation
from slicepilot.cli.shared.output import print_json
from slicepilot.configs.backends import Check
from slicepilot.configs.documents import Document, check
from slicepilot.env.telemetry import SLICE_FIELDS

ROOT = Path(__file__).parents[2]
SHAPES = {f"{name} {when}".strip(): shape for name, shapes in PRINTED.items() for when, shape in shapes.items()}


def object_of(shape: Any) -> Any:
    """The object that a document is, or is a list of."""
    return get_args(shape)[0] if get_origin(shape) is list else shape


def test_the_manual_has_every_shape_that_a_command_prints() -> None:
    """The second argument of each `print_json`, and each command with ``--json``."""
    commands = {name for name, command in load_commands() if any("--json" in param.opts for param in command.params)}
    assert set(PRINTED) == commands
    used = set()
    for folder in ("cli", "cluster/cli", "node/cli", "testbed/cli"):
        for file in (ROOT / folder).rglob("*.py"):
            for call in ast.walk(ast.parse(file.read_text())):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "print_json":
                    names = [node for node in ast.walk(call.args[1]) if isinstance(node, ast.Name | ast.Attribute)]
                    module = ".".join(["slicepilot", *file.relative_to(ROOT).with_suffix("").parts])
                    known = vars(importlib.import_module(module))
                    values = [eval(text, known) for text in map(ast.unparse, names) if text.split(".")[0] in known]
                    used |= {value.__name__ for value in values if isinstance(value, type)}
    assert used == {object_of(shape).__name__ for shape in SHAPES.values()}


class Inner(Document):
    """For tests."""

    delay_us: float


class Outer(Document):
    """For tests."""

    name: str
    slices: list[Inner]


UNFIT: dict[str, tuple[Any, str]] = {
    "nan": ({"name": "", "slices": [{"delay_us": float("nan")}]}, "slices[0].delay_us = nan: JSON has no such value"),
    "other value": ({"name": "", "slices": [{"delay_us": Path("x")}]}, "slices[0].delay_us = PosixPath('x'): JSON"),
    "more": ({"name": "", "slices": [{"delay_us": 1, "more": None}]}, "slices[0].more = None: not in the schema"),
    "no object": ([], "document = []: expected an object"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_document_that_does_not_fit_is_one_line_and_exit_code_1(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    value, message = UNFIT[case]
    with pytest.raises(typer.Exit) as ended:
        print_json(value, Outer)
    printed = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert printed.out == ""
    assert printed.err.startswith(f"slicepilot: internal error: JSON: {message}")
    assert printed.err.count("\n") == 1


def test_what_fits_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither order nor numbers change, and tuples are lists."""
    value = {"slices": ({"delay_us": 1}, {"delay_us": 0.1 + 0.2}, {"delay_us": 1e300}), "name": "µ"}
    print_json(value, Outer)
    assert capsys.readouterr().out == json.dumps(value, indent=2) + "\n"


def test_shapes_do_not_import_pydantic() -> None:
    """It is imported to print; a loop has the shapes of its status loaded and never prints."""
    program = "import sys; from slicepilot.controller.contracts import answers; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not {"pydantic", "numpy", "typer"} & set(run.stdout.split())


# Commands of which no other test prints the JSON, which is held against its shape before it is printed.
REAL: dict[str, tuple[tuple[str, ...], Any]] = {
    "doctor": (("doctor",), list[Check]),
    "study": (
        ("simulate", "--study", "andrade", "--experiments", "1,5", "--repetitions", "1", "--series"),
        list[evaluation.StudyExperiment],
    ),
    "scenario": (("simulate", "--scenario", "slice-churn"), evaluation.Played),
    "bench sim": (("bench", "sim", "--seconds", "0.1", "--repetitions", "1"), bench.SimulatorSpeed),
    "releases": (("dataset", "list"), list[datasets.Release]),
}


@pytest.mark.parametrize("case", REAL)
def test_real_documents_fit(case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, schema = REAL[case]
    monkeypatch.setattr(sys, "argv", ["slicepilot", *arguments, "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr().out
    assert stop.value.code == 0 or case == "doctor"
    check(printed, schema)
    assert json.loads(printed)


def test_every_field_of_a_slice_is_explained() -> None:
    explained = {name for names in COMMON for name in names.split(", ")}
    assert explained >= set(SLICE_FIELDS)
