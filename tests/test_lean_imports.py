"""The running controller stays lean: what it imports never pulls in the packages of training."""

import subprocess
import sys
from pathlib import Path

HEAVY_PACKAGES = {
    "kubernetes",
    "matplotlib",
    "mlflow",
    "pandas",
    "ray",
    "requests",
    "stable_baselines3",
    "torch",
}

IMPORT_EVERYTHING = """
import importlib, pathlib, sys

names = []
for part in sys.argv[2].split():
    [folder] = map(pathlib.Path, importlib.import_module(f"slicepilot.{part}").__path__)
    for file in sorted(folder.resolve().rglob("*.py")):
        path = file.relative_to(folder.resolve()).with_suffix("").parts
        names.append(".".join(["slicepilot", part, *path]).removesuffix(".__init__"))

heavy = set(sys.argv[1].split())
for name in names:
    if name.endswith(".__main__"):
        continue
    importlib.import_module(name)
    imported = heavy & sys.modules.keys()
    if imported:
        sys.exit(f"importing {name} also imported {', '.join(sorted(imported))}")
print(*names)
"""

SHOW_HELP = """
import sys

sys.argv = ["slicepilot", "--help"]
from slicepilot.cli import main

try:
    code = main()
except SystemExit as stop:
    code = stop.code
imported = set(sys.stdin.read().split()) & sys.modules.keys()
if code or imported:
    sys.exit(f"exit code {code}, imported {', '.join(sorted(imported)) or 'nothing heavy'}")
"""


def python(code: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_no_module_of_the_lean_runtime_imports_a_heavy_package() -> None:
    links = Path(__file__).parents[1] / ".links" / "slicepilot"
    parts = sorted(link.name for link in links.iterdir() if link.is_dir() and link.name != "training")
    result = python(IMPORT_EVERYTHING, " ".join(HEAVY_PACKAGES), " ".join(parts))
    assert result.returncode == 0, result.stderr
    names = result.stdout.split()
    assert {"slicepilot.agents", "slicepilot.controller", "slicepilot.env"} <= set(names)


SHOW_PUBLISHER = """
import os, sys

os.environ["SLICEPILOT_WITHOUT_GYMNASIUM"] = "1"
from slicepilot.controller.publisher import pages, process
from slicepilot.controller.record import segments

print(*sorted({"gymnasium", "numba", "onnxruntime", "pydantic", "yaml"} & sys.modules.keys()))
"""


def test_the_publisher_imports_no_more_than_it_needs() -> None:
    result = python(SHOW_PUBLISHER)
    assert (result.returncode, result.stdout) == (0, "\n"), result.stdout + result.stderr


def test_help_imports_no_heavy_package() -> None:
    result = python(SHOW_HELP, stdin=" ".join(HEAVY_PACKAGES))
    assert result.returncode == 0, result.stderr
    assert "simulate" in result.stdout
