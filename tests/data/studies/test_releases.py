"""The catalogue: what it says of each release holds together, and it says so where there is nothing to fetch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from slicepilot.configs import ConfigError
from slicepilot.data.studies.kinds import KINDS, detect, detected
from slicepilot.data.studies.releases import Release, find, releases

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "tests" / "data" / "samples"


def test_a_file_is_the_one_that_is_known_or_another_or_nothing_is_known() -> None:
    andrade = find("andrade")
    for file in andrade.files:
        assert file.known_bytes is not None
        digest = f"{file.known_sha256_start}{'0' * 56}"
        assert andrade.as_known("renamed.bson.gz", file.known_bytes, digest) is True
        assert andrade.as_known(file.name, file.known_bytes, "f" * 64) is False
        assert andrade.as_known(file.name, file.known_bytes + 1, digest) is False
    assert andrade.as_known("cpu.json", 10, "f" * 64) is None
    assert find("mishra").as_known("o1_pfcp_exp_light.csv", 10, "f" * 64) is None


@pytest.mark.parametrize("name", ["README.md", "README", "LICENSE", "readme.txt", "latency.bt", "cpu.py", "Makefile"])
def test_what_a_repository_holds_beside_data_is_of_no_kind(name: str, tmp_path: Path) -> None:
    path = tmp_path / "qf1_baseline" / name
    path.parent.mkdir()
    path.write_text("UE IP: 10.1.0.44 | Decapsulation Overhead: 14350 ns\n")
    assert detect(path) is None
    (path.parent / "latency.txt").write_text(path.read_text())
    assert detected(path.parent / "latency.txt").name == "moreira-latency"


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.name)
def test_addresses_are_those_of_one_commit_of_its_repository(release: Release) -> None:
    assert release.repository is not None
    repository = release.repository.removeprefix("https://github.com/")
    for file in release.files:
        if file.address is not None:
            pattern = rf"https://raw\.githubusercontent\.com/{re.escape(repository)}/[0-9a-f]{{40}}/\S+"
            assert re.fullmatch(pattern, file.address)
            assert file.address.endswith(file.name)
        assert not {"", ".."} & set(file.name.split("/")), "it is written below the folder of the release"
        assert re.fullmatch(r"[0-9a-f]{8,64}", file.known_sha256_start or 8 * "0")
    assert len({file.name for file in release.files}) == len(release.files)


def samples_of(release: Release) -> list[Path]:
    return [path for path in (SAMPLES / release.name).rglob("*") if path.is_file()]


def test_every_kind_has_a_sample() -> None:
    result = {(release.name, detected(path)) for release in releases() for path in samples_of(release)}
    assert {kind.name for _, kind in result} == {kind.name for kind in KINDS}
    assert {name for name, _ in result} == {release.name for release in releases()}
    assert all(kind.release == name for name, kind in result)


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.name)
def test_files_of_releases_are_recognised(release: Release, tmp_path: Path) -> None:
    """By name and first bytes, as they lie in a folder after they were fetched."""
    for file in release.files:
        path = tmp_path / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        alike = [sample for sample in samples_of(release) if sample.suffix == path.suffix]
        assert alike, f"tests/data/samples/{release.name} has nothing like {file.name}"
        result = set()
        for sample in alike:
            shutil.copyfile(sample, path)
            kind = detect(path)
            result |= {kind.release} if kind else set()
        assert result == {release.name}


def test_only_open_releases_can_be_fetched() -> None:
    is_open = [release.name for release in releases() if release.status == "open"]
    assert {"andrade", "moreira"} <= set(is_open)
    assert len(find("andrade").fetchable()) == 3
    with pytest.raises(ConfigError, match=rf"release = 'mishra': offers only code .*; expected {', '.join(is_open)}"):
        find("mishra").fetchable()
