"""Packages import what docs/architecture.md says they may, and the documentation's examples run."""

from __future__ import annotations

import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slicepilot.agents.heuristics.registry import make
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.simulator.scenario import Scenario

from .structure import SourceTree

ROOT = Path(__file__).parents[1]
TREE = SourceTree(ROOT)
PARTS, MODULES = TREE.parts, TREE.modules
MOST_FILES = 17


def test_packages_import_those_above_them_in_the_table() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## Packages")[2]
    order = re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)
    assert sorted(order) == sorted(TREE.packages), "docs/architecture.md names every package once"
    broken = [
        f"{module} imports {other}"
        for module in sorted(MODULES)
        for other in sorted(TREE.imported(module))
        if order.index(TREE.package_of(other)) > order.index(TREE.package_of(module))
    ]
    assert not broken


def test_no_file_imports_itself_by_way_of_others() -> None:
    graphlib.TopologicalSorter(TREE.file_graph()).prepare()  # raises CycleError, which names them


def test_no_folder_is_a_drawer() -> None:
    """A folder with many files answers several questions."""
    counts = {name: len(list(folder.glob("*.py"))) - 1 for name, folder in TREE.packages.items()}
    crowded = {name: count for name, count in counts.items() if count > MOST_FILES}
    assert not crowded, f"at most {MOST_FILES} modules in a folder: move some that belong together into a subfolder"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["docs/environment.md", "docs/python.md", "README.md"])
def test_python_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), {})


def test_the_scenario_of_the_manual_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks("docs/environment.md", "yaml"):
        name, text = block.split("\n", 1)
        Path(name.removeprefix("# ")).write_text(text)
    scenario = Scenario.from_yaml("clinic.yaml")
    assert scenario.num_steps == 600
    make("static-weights-9", scenario.slice_set(), Hardware.from_yaml("clinic-node.yaml"))


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_files_that_pages_name_are_there() -> None:
    parts = "|".join(sorted(PARTS | {"benchmarks", "deploy", "examples", "tests"}))
    named = re.compile(rf"`((?:{parts})/[\w./-]+\.\w+)`")
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    missing = [
        f"{page.name}: {path}"
        for page in pages
        if page.name != "CHANGELOG.md"
        for path in named.findall(page.read_text())
        if "NAME" not in path and "STUDY" not in path and not (ROOT / path).exists()
    ]
    assert not missing


def test_names_in_text_lead_to_what_is_there() -> None:
    """Every ``slicepilot.part.module.name`` in code, comments, documents and configurations."""
    suffixes = {".py", ".md", ".yaml", ".toml", ".sh", ".c", ".h"}
    files = [
        file for folder in (*PARTS, "docs", "benchmarks", "examples", "tests") for file in (ROOT / folder).rglob("*.*")
    ]
    missing = []
    for file in [*files, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:  # the changelog speaks of what was there, too
        if file.suffix not in suffixes or file == Path(__file__):
            continue
        for name in re.findall(r"\bslicepilot((?:\.\w+)+)", file.read_text()):
            parts = name.strip(".").split(".")
            depth = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in MODULES), 0)
            if parts[0] not in PARTS or len(parts) == depth:
                continue
            module, attribute = MODULES[".".join(parts[:depth])], parts[depth]
            known = re.search(rf"\b{attribute}\b", module.read_text()) or [*module.parent.glob(f"{attribute}*")]
            if not known and not attribute.startswith("_") and not attribute.endswith("_"):
                missing.append(f"{file.relative_to(ROOT)}: slicepilot{name}")
    assert not missing


def test_the_package_has_a_version_and_the_names_that_users_need() -> None:
    """In a process of its own: importing the package alone imports nothing else, each name can be imported."""
    code = """
import sys, slicepilot
before = {name for name in sys.modules if name.startswith(("slicepilot.", "numpy", "gymnasium"))}
assert not before, before
assert slicepilot.__version__ and all(getattr(slicepilot, name) is not None for name in slicepilot.__all__)
assert not hasattr(slicepilot, "wrong")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
