"""Folders import what docs/design.md says they may, and the documentation's examples run."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from slicepilot.agents.heuristics.registry import make
from slicepilot.env.simulator.scenario import Scenario

ROOT = Path(__file__).parents[1]
PARTS = {link.name for link in (ROOT / ".links" / "slicepilot").iterdir()}


def imported_parts(file: Path, part: str) -> set[str]:
    """Other parts of the namespace that a module imports, at its top or inside functions."""
    package = ("slicepilot", part, *file.relative_to(ROOT / part).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[tuple[str, ...]] = []
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = tuple(node.module.split(".")) if node.module else ()
            names = [(*base, *module, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [tuple(node.module.split("."))]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        found |= {name[1] for name in names if name[0] == "slicepilot" and len(name) > 1}
    return found - {part}


def test_folders_import_what_they_may() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\w, ]*) ?\|$", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE)
    allowed = {part: set(filter(None, may.replace(" ", "").split(","))) for part, may in rows}
    assert set(allowed) == PARTS
    broken = defaultdict(set)
    for part in PARTS:
        for file in (ROOT / part).rglob("*.py"):
            for other in imported_parts(file, part) - allowed[part]:
                broken[part, other].add(str(file.relative_to(ROOT)))
    assert not broken


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["docs/environment.md", "README.md"])
def test_python_examples_run(page: str) -> None:
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), {})


def test_the_scenario_of_the_manual_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks("docs/environment.md", "yaml"):
        name, text = block.split("\n", 1)
        Path(name.removeprefix("# ")).write_text(text)
    scenario = Scenario.from_yaml("clinic.yaml")
    assert scenario.num_steps == 600
    make("static-weights-9", scenario.slice_set(), scenario.hardware_spec())


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
