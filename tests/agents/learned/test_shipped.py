"""A name alone is a shipped bundle's where there is one; whatever else is a folder."""

from pathlib import Path

import pytest

from slicepilot.agents.learned import shipped
from slicepilot.agents.learned.shipped import GENERALIST, bundle_folder, is_shipped


def test_the_name_wins_over_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever may write there could put a policy of their own in a command's way."""
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path / "package")
    (tmp_path / "package" / GENERALIST).mkdir(parents=True)
    (tmp_path / GENERALIST).mkdir()
    monkeypatch.chdir(tmp_path)
    assert bundle_folder(GENERALIST) == tmp_path / "package" / GENERALIST
    assert is_shipped(GENERALIST)
    assert bundle_folder(tmp_path / GENERALIST) == tmp_path / GENERALIST
    assert not is_shipped(tmp_path / GENERALIST)


def test_any_other_name_is_a_path() -> None:
    assert bundle_folder("runs/generalist") == Path("runs/generalist")
    assert bundle_folder("mine") == Path("mine")
