"""Shipped episodes that were recorded on real UPFs; README.md describes them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from slicepilot.configs import ConfigError, did_you_mean


def names() -> list[str]:
    """Names of the shipped datasets, sorted."""
    result = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".parquet") for file in result if file.name.endswith(".parquet"))


def find(name_or_path: str) -> Path:
    """Path of a recorded dataset, given by name or path; raises ConfigError for an unknown name."""
    given = Path(name_or_path)
    is_path = given.suffix or given.parent != Path() or given.exists() or given.is_symlink()
    return given if is_path else path(name_or_path)


def path(name: str) -> Path:
    """File of a recorded dataset by name, for `slicepilot.data.episodes.files.read_episodes`.

    Raises:
        ConfigError: there is none of this name; says which there are.
    """
    if name not in (there := names()):
        raise ConfigError(f"dataset = {name!r}: {did_you_mean(name, there)}, or a file")
    with resources.as_file(resources.files(__name__).joinpath(f"{name}.parquet")) as result:
        return result
