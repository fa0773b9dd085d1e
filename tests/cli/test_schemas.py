"""What commands print fits the types that the manual is made of, and says so loudly where it does not."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import typer
from typing_extensions import is_typeddict

from slicepilot.cli import main
from slicepilot.cli.reference.page import page, with_json
from slicepilot.cli.schemas import bench, datasets, episodes, evaluation, machine
from slicepilot.cli.schemas.catalogue import PRINTED, Printed
from slicepilot.cli.schemas.fields import example, object_of, rows
from slicepilot.cli.shared.output import print_json
from slicepilot.configs.documents import Document, DocumentError, check, dumps

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "data" / "samples"


def name_of(printed: Printed) -> str:
    return f"{printed.command}, {printed.when}".removesuffix(", ")


each_document = pytest.mark.parametrize("printed", PRINTED, ids=name_of)


def test_the_manual_is_what_the_generator_writes() -> None:
    written = (ROOT / "docs" / "cli.md").read_text()
    assert written == page(), "run `python -m slicepilot.cli.reference`"


def test_every_command_with_json_is_in_the_manual() -> None:
    assert {printed.command for printed in PRINTED} == with_json()


def test_the_schemas_of_the_manual_are_those_that_commands_use() -> None:
    used = {id(schema): schema for schema in schemas_in_use()}
    known = {id(schema): schema for schema in (object_of(printed.schema) for printed in PRINTED)}
    assert {schema.__name__ for schema in used.values()} == {schema.__name__ for schema in known.values()}
    assert set(used) == set(known)


def schemas_in_use() -> Iterator[Any]:
    """What is given to `print_json` as a schema, anywhere in the code."""
    for folder in ("cli", "cluster/cli", "node/cli", "testbed/cli"):
        yield from schemas_in(ROOT / folder)


def schemas_in(folder: Path) -> Iterator[Any]:
    """The same, in a folder."""
    for file in folder.rglob("*.py"):
        calls = [
            node
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print_json"
        ]
        if not calls:
            continue
        module = importlib.import_module(".".join(["slicepilot", *file.relative_to(ROOT).with_suffix("").parts]))
        for call in calls:
            names = [node for node in ast.walk(call.args[1]) if isinstance(node, ast.Name | ast.Attribute)]
            known = [text for text in map(ast.unparse, names) if text.split(".")[0] in vars(module)]
            schemas = [one for text in known if is_typeddict(one := eval(text, vars(module)))]
            assert schemas, f"{file}: {ast.unparse(call)}"
            yield from schemas


@each_document
def test_every_field_is_described(printed: Printed) -> None:
    assert [row.path for row in rows(printed.schema) if not row.text] == []


@each_document
def test_the_example_fits_its_schema(printed: Printed) -> None:
    dumps(example(printed.schema), printed.schema)


@each_document
def test_other_documents_do_not_fit(printed: Printed) -> None:
    """One field more, one less, one of another type: each is refused by name."""
    given = example(printed.schema)
    listed = isinstance(given, list)
    whole: dict[str, Any] = given[0] if listed else given
    lead = "[0]." if listed else ""

    def refused(document: dict[str, Any], message: str) -> None:
        with pytest.raises(DocumentError) as error:
            dumps([document] if listed else document, printed.schema)
        assert str(error.value).startswith(message)

    refused(whole | {"more": 1}, f"{lead}more = 1: not in the schema")
    required = [row.path for row in rows(printed.schema) if row.path in whole and not row.optional]
    assert required
    for name in required:
        refused({key: value for key, value in whole.items() if key != name}, f"{lead}{name}: ")
        if name not in {"min", "max"}:
            refused(whole | {name: [{}]}, f"{lead}{name}")


class Inner(Document):
    """For tests."""

    delay_us: float
    """Delay."""


class Outer(Document):
    """For tests."""

    name: str
    """Name."""
    slices: list[Inner]
    """Slices."""


UNFIT: dict[str, tuple[Any, str]] = {
    "nan": ({"name": "", "slices": [{"delay_us": float("nan")}]}, "slices[0].delay_us = nan: JSON has no such value"),
    "text": ({"name": "", "slices": [{"delay_us": "1"}]}, "slices[0].delay_us = '1': Input should be a valid number"),
    "other value": ({"name": "", "slices": [{"delay_us": Path("x")}]}, "slices[0].delay_us = PosixPath('x'): JSON"),
    "left out": ({"name": ""}, "slices: Field required"),
    "more": ({"name": "", "slices": [{"delay_us": 1, "more": None}]}, "slices[0].more = None: not in the schema"),
    "no object": ([], "document = []: Input should be an object"),
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


IMPORTED = """
import sys
from slicepilot.controller.contracts import answers
print(*sys.modules)
from slicepilot.cli.schemas import catalogue
print(*sys.modules)
"""


def test_schemas_import_nothing_heavy() -> None:
    """pydantic, which reads them, comes when there is something to print."""
    run = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=60, check=True)
    controllers, all_of_them = (set(line.split()) for line in run.stdout.splitlines())
    assert not {"pydantic", "numpy", "typer"} & controllers
    assert not {"numpy", "onnxruntime", "pyarrow", "rich.table", "scipy", "torch"} & all_of_them


# Commands that need neither root nor minutes. In FOLDER lie a table and episodes; NEW is an empty one.
REAL: dict[str, tuple[tuple[str, ...], Any, int]] = {
    "doctor": (("doctor",), list[machine.Check], 1),
    "study": (
        ("simulate", "--study", "andrade", "--experiments", "1,5", "--repetitions", "1"),
        list[evaluation.StudyExperiment],
        0,
    ),
    "scenario": (("simulate", "--scenario", "slice-churn"), evaluation.Played, 0),
    "evaluate": (
        *(("evaluate", "--scenario", "slice-churn", "--agents", "no-control,captain,clairvoyant", "--seeds", "2"),),
        *(evaluation.Evaluation, 0),
    ),
    "evaluate two": (
        ("evaluate", "--scenario", "slice-churn", "--scenario", "andrade-ramp", "--agents", "no-control,experiment-5"),
        *(list[evaluation.Evaluation], 0),
    ),
    "evaluate a suite": (
        ("evaluate", "--suite", "drawn", "--scenarios", "2", "--agents", "greedy,no-control"),
        *(evaluation.Suite, 0),
    ),
    "bench sim": (("bench", "sim", "--seconds", "0.1", "--repetitions", "1"), bench.SimulatorSpeed, 0),
    "releases": (("dataset", "list"), list[datasets.Release], 0),
    "import": (("dataset", "import", f"{SAMPLES}", "--out", "NEW"), datasets.Imported, 0),
    "validate": (("dataset", "validate", f"{SAMPLES}"), datasets.Validated, 1),
    "describe a file": (
        ("dataset", "describe", f"{SAMPLES}/mishra/o1_forwarding_exp_light.csv"),
        *(datasets.DescribedTable, 0),
    ),
    "describe latencies": (
        ("dataset", "describe", f"{SAMPLES}/mishra/o1_pfcp_exp_light.csv"),
        *(datasets.DescribedTable, 0),
    ),
    "convert a file": (
        ("dataset", "convert", f"{SAMPLES}/mishra/o1_forwarding_exp_light.csv", "NEW/table.csv"),
        *(datasets.Converted, 0),
    ),
    "describe a table": (("dataset", "describe", "FOLDER/table.parquet"), datasets.DescribedTable, 0),
    "analyse": (
        *(("dataset", "analyse", f"{SAMPLES}/moreira", "--resamples", "100", "--out", "NEW"),),
        *(episodes.Analysed, 0),
    ),
    "record": (
        ("dataset", "record", "--agents", "random", "--seconds", "1", "--out", "NEW/log.parquet"),
        *(episodes.Recorded, 0),
    ),
    "describe episodes": (("dataset", "describe", "FOLDER/log.parquet"), datasets.DescribedEpisodes, 0),
    "convert episodes": (("dataset", "convert", "FOLDER/log.parquet", "NEW/log-v0"), datasets.Converted, 0),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    for command in (
        ["convert", str(SAMPLES / "mishra" / "o1_forwarding_exp_light.csv"), str(folder / "table.parquet")],
        ["record", "--agents", "random", "--seconds", "1", "--out", str(folder / "log.parquet")],
    ):
        subprocess.run([sys.executable, "-m", "slicepilot.cli", "dataset", *command], check=True, timeout=120)
    return folder


@pytest.fixture
def document(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[Any, str]]:
    """Exit code and output of a command."""

    def run(case: str) -> tuple[Any, str]:
        arguments = [part.replace("FOLDER", str(folder)).replace("NEW", str(tmp_path)) for part in REAL[case][0]]
        if arguments[0] == "evaluate":
            arguments += ["--no-mlflow", "--results", str(tmp_path)]
            arguments += [] if "--seeds" in arguments else ["--seeds", "1"]
        monkeypatch.setattr(sys, "argv", ["slicepilot", *arguments, "--json"])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, capsys.readouterr().out

    return run


@pytest.mark.parametrize("case", REAL)
def test_real_documents_fit(case: str, document: Callable[[str], tuple[Any, str]]) -> None:
    _, schema, at_most = REAL[case]
    code, printed = document(case)
    assert code <= at_most
    check(printed, schema)
    value = json.loads(printed)
    assert value
    if get_origin(schema) is list:
        assert set(value[0]) <= set(get_args(schema)[0].__annotations__)
    assert printed == json.dumps(value, indent=2) + "\n"
