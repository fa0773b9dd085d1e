"""Which build of PyTorch requirements/install.sh chooses. A stand-in for uv records what it is called with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = """#!/bin/sh
echo "$@" >>"$0.calls"
for last; do true; done
case "$*" in
*--dry-run*) exit "$ANSWERS" ;;
*sync*) grep -o "^[a-z0-9-]*" "$last" >"$0.synced" ;;
esac
"""
HAS_GPU = bool(list(Path("/dev").glob("nvidia[0-9]*")))


def install(folder: Path, choice: str, answers: bool, file: str = "train") -> tuple[list[str], set[str]]:
    """What uv was called with, and the packages that it was to install by their hashes."""
    uv = folder / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "TORCH": choice, "ANSWERS": "0" if answers else "2"}
    command = [str(ROOT / "requirements" / "install.sh"), str(uv), f"requirements/{file}.txt"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    calls = (folder / "uv.calls").read_text().splitlines()
    return calls, set((folder / "uv.synced").read_text().split())


@pytest.mark.skipif(HAS_GPU, reason="a machine with a GPU keeps CUDA")
def test_a_machine_without_a_gpu_gets_the_cpu_build(tmp_path: Path) -> None:
    calls, synced = install(tmp_path, "auto", answers=True)
    assert {"numpy", "mlflow", "stable-baselines3"} <= synced
    assert not [name for name in synced if name in {"torch", "triton"} or name.startswith(("nvidia", "cuda"))]
    assert "--no-deps --torch-backend cpu torch==" in calls[-1]
    assert "--require-hashes" in calls[-2]


@pytest.mark.parametrize("choice", ["auto", "locked"])
def test_without_that_index_or_where_asked_the_locked_build_comes(tmp_path: Path, choice: str) -> None:
    calls, synced = install(tmp_path, choice, answers=False)
    assert {"torch", "nvidia-cublas", "triton"} <= synced
    assert "--torch-backend" not in calls[-1]


def test_what_needs_no_torch_brings_none(tmp_path: Path) -> None:
    calls, synced = install(tmp_path, "auto", answers=False, file="lean")
    assert len(calls) == 1
    assert {"numpy", "onnxruntime", "scipy"} <= synced
    assert not synced & {"torch", "mlflow", "ray", "pandas"}
