"""Location of compiled programs (user plane, probe), which a wheel contains and a clone builds."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
"""Folder of the parts: `slicepilot` of an installed package, the repository's root in a clone."""

IN_CLONE = (PACKAGE / "pyproject.toml").is_file()

WHEELS = "manylinux_2_17_x86_64 and manylinux_2_17_aarch64"


def remedy(target: str) -> str:
    """How to get a missing or outdated file; `target` is the Makefile target that builds it in a clone."""
    if IN_CLONE:
        return f"run `make {target}`"
    return (
        f"install a wheel that has it (those for {WHEELS}), or work in a clone of the repository after `make {target}`"
    )
