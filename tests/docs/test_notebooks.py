"""The notebooks of the site run as they are written, and what they hold was printed by their code."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from slicepilot.testbed.lifecycle.testbed import missing

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
LIVE = {"shadow-to-live"}


@pytest.fixture
def nbformat() -> Any:
    """Imported late: what it checks with takes a second, which each process that collects tests would spend."""
    return pytest.importorskip("nbformat")


def test_there_are_five_that_are_valid(nbformat: Any) -> None:
    assert len(NAMES) == 5
    for name in NAMES:
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
        nbformat.validate(notebook)
        assert notebook.cells[-1].source.count("## Next"), name


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(nbformat: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in LIVE and (lacking := missing()):
        pytest.skip(f"this machine lacks {'; '.join(lacking)}")
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    nbclient: Any = pytest.importorskip("nbclient")
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [out for cell in notebook.cells for out in cell.get("outputs", ()) if out["output_type"] != "error"]
    assert printed
