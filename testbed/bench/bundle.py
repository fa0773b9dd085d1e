"""The policy that a benchmark runs where none is named."""

from __future__ import annotations

from pathlib import Path

RUNS = Path("runs")
SHIPPED = Path(__file__).resolve().with_name("barely_trained")
"""Made by ``slicepilot train -c ppo --minutes 0.2``: as large as a good policy, so it costs the same, and no use
otherwise."""


def bundle_folder(named: Path | None) -> Path:
    """The bundle that is named, or else the newest of a run or demo under ``runs/``, or else the shipped one."""
    if named is not None:
        return named
    result = [*RUNS.glob("*/bundle"), *RUNS.glob("*/training/bundle")]
    return max(result, key=lambda path: path.stat().st_mtime, default=SHIPPED)
