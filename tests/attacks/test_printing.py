"""What others chose - names in files, of results, errors of servers - on a terminal, in a report, in ASCII."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.table import Table
from rich.text import Text

from slicepilot.cli.shared.output import PlainConsole
from slicepilot.configs import ConfigError
from slicepilot.configs.limited_yaml import parse_yaml
from slicepilot.configs.loader import locate
from slicepilot.configs.text import cleaned, has_controls
from slicepilot.training.reports.page import escape

ROOT = Path(__file__).parents[2]
HOSTILE = ["a\x1b[2Jb", "a\x1b]0;title\x07b", "a\x9b31mb", "a\u202eb", "a\u2066b", "a\u200bb", "a\x00b", "a\u2028b"]
ASCII = {"LANG": "C", "PYTHONIOENCODING": "ascii"}
PLAIN = {"LANG": "C"}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_console_shows_no_terminal_codes_of_others(name: str) -> None:
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=False, width=100)
    table = Table("name", title=name)
    table.add_row(name)
    table.add_row(Text(name, "bold"))
    for shown in (name, f"{name}: [bold]3[/bold] [/x]", table, Text(name)):
        console.print(shown)
    assert not has_controls(out.getvalue().replace("\n", ""))
    assert "[bold]3[/bold] [/x]" in out.getvalue(), "square brackets of a name are no markup"


def test_styles_of_our_own_remain() -> None:
    out = io.StringIO()
    PlainConsole(file=out, force_terminal=True, color_system="standard").print(Text("warning", "yellow"))
    assert "\x1b[33mwarning\x1b[0m" in out.getvalue()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_with_control_characters_is_refused_in_yaml(name: str) -> None:
    for document in ({"name": name}, {"slices": [{"sla": {name: 1}}]}):
        text = yaml.safe_dump(document, allow_unicode=False).encode()
        with pytest.raises(ConfigError, match=r"^file: control characters in the text at line \d+; expected") as caught:
            parse_yaml(text, "file")
        assert str(caught.value).isprintable()
    assert parse_yaml(b"description: |\n  two\n  lines\twith a tab\nname: \xc3\xa9t\xc3\xa9 \xe2\x82\xac\n", "file")


def test_other_encodings_are_named_and_a_mark_is_read() -> None:
    text = "name: é\n"
    assert parse_yaml(text.encode("utf-8-sig"), "file") == {"name": "é"}
    for encoding, words in (("utf-16", "is UTF-16"), ("latin-1", "is not UTF-8")):
        with pytest.raises(ConfigError, match=f"file: {words}; expected YAML in UTF-8"):
            parse_yaml(text.encode(encoding), "file")


@pytest.mark.parametrize("name", HOSTILE)
def test_reports_have_neither_tags_nor_directions_of_others(name: str) -> None:
    shown = escape(f"<script>{name}</script>\"'")
    assert not has_controls(shown)
    assert "<" not in shown
    assert '"' not in shown


def test_cleaned_text_keeps_lines_and_letters() -> None:
    assert cleaned("é\n\u00a0ü\x1b[m") == "é\n\u00a0ü?[m"


def ran(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    variables = {key: value for key, value in os.environ.items() if key not in {"LANG", "LC_ALL", "LC_CTYPE"}}
    command = [sys.executable, "-m", "slicepilot.cli", *arguments]
    return subprocess.run(command, env=variables | environment, capture_output=True, timeout=300, check=False)


@pytest.mark.parametrize("environment", [ASCII, PLAIN], ids=["ascii", "C"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("evaluate", "--help"),
        ("doctor",),
        ("dataset", "list"),
        ("simulate", "--scenario", "testbed-contention", "--agent", "no-control"),
        ("dataset", "validate", "tests/data/samples/mishra"),
        ("simulate", "--scenario", "tëst…—×"),
        ("evaluate", "--agents", "no-control", "--seeds", "1", "--scenario", "testbed-contention", "--no-mlflow"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]).encode("ascii", "replace").decode(),
)
def test_an_ascii_terminal_gets_plain_output(
    arguments: tuple[str, ...], environment: dict[str, str], tmp_path: Path
) -> None:
    more = ("--results", str(tmp_path / "results")) if arguments[0] == "evaluate" and len(arguments) > 2 else ()
    done = ran(*arguments, *more, **environment)
    assert done.stdout.isascii(), done.stdout
    assert done.stderr.isascii(), done.stderr
    assert b"Traceback" not in done.stderr
    assert done.returncode in {0, 1, 2}
    assert done.stdout or done.stderr


def test_a_scenario_with_terminal_codes_in_its_name_is_one_line(tmp_path: Path) -> None:
    text = locate("scenarios", "testbed-contention").read_text()
    path = tmp_path / "hostile.yaml"
    path.write_text(re.sub(r"^name: .*$", 'name: "a\\\\e[2J\\\\u202eb"', text, flags=re.MULTILINE))
    done = ran("simulate", "--scenario", str(path), "--agent", "no-control", LANG="C.UTF-8")
    assert done.returncode == 2
    [line] = done.stderr.decode().splitlines()
    assert "control characters in the text at line" in line
    assert line.isprintable()
    assert not done.stdout


def test_an_error_line_is_bounded() -> None:
    done = ran("simulate", "--scenario", "x" * 50_000, LANG="C.UTF-8")
    assert done.returncode == 2
    assert len(done.stderr) < 5000


PRINTING = {"cli/shared/output.py", "cli/shared/endings.py", "cli/app.py", "cli/train/train.py"}


def test_commands_print_by_the_consoles() -> None:
    """`print` of a command would show what a console does not; a console of rich alone as well."""
    for part in ("cli", "cluster/cli", "node/cli", "testbed/cli"):
        for file in (ROOT / part).rglob("*.py"):
            name = str(file.relative_to(ROOT))
            calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
            called = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
            assert name in PRINTING or not called & {"print", "Console"}, name
