"""The catalogue: what it says of each release holds together, and it says so where there is nothing to fetch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slicepilot.configs import ConfigError, validate
from slicepilot.data.studies.kinds import KINDS, detected
from slicepilot.data.studies.releases import STATUS_MEANINGS, Release, find, releases

README = Path(__file__).parents[3] / "data" / "reference" / "README.md"


def test_names_are_unique_and_known() -> None:
    names = [release.name for release in releases()]
    assert names == ["andrade", "mishra", "moreira"]
    assert {release.status for release in releases()} <= set(STATUS_MEANINGS)


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.name)
def test_each_is_of_a_study_in_the_reference_figures(release: Release) -> None:
    text = " ".join(README.read_text().split())
    assert release.title in text
    assert release.title in " ".join(release.citation.split())
    assert release.paper


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.name)
def test_addresses_are_those_of_one_commit_of_its_repository(release: Release) -> None:
    assert release.repository is not None
    repository = release.repository.removeprefix("https://github.com/")
    for file in release.files:
        if file.address is not None:
            pattern = rf"https://raw\.githubusercontent\.com/{re.escape(repository)}/[0-9a-f]{{40}}/\S+"
            assert re.fullmatch(pattern, file.address)
            assert file.address.endswith(file.name)
    assert len({file.name for file in release.files}) == len(release.files)


def test_files_of_releases_are_recognised(tmp_path: Path) -> None:
    """By name and first bytes, as they lie in a folder after they were fetched."""
    starts = {
        ".csv": b"time,cpu_user\n",
        "forwarding": b"slice,delay_us,pkt_len,ts_rx_ns,ts_tx_ns,netif_rx\n",
        "pfcp": b"pfcp_type,latency_us\n",
        ".gz": b"\x30\x00\x00\x00\x10exp\x00\x01\x00\x00\x00\x01value\x00",
    }
    found = set()
    for release in releases():
        for file in release.files:
            path = tmp_path / release.name / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            key = next(key for key in ("forwarding", "pfcp", ".gz", ".csv") if key in file.name)
            path.write_bytes(starts[key])
            kind = detected(path)
            assert kind.release == release.name
            found.add(kind.name)
    assert found == {kind.name for kind in KINDS} - {"moreira-latency"}  # of which there is only the probe


def test_only_open_releases_can_be_fetched() -> None:
    assert [release.name for release in releases() if release.status == "open"] == ["andrade", "moreira"]
    assert len(find("andrade").fetchable()) == 3
    with pytest.raises(ConfigError, match=r"release = 'mishra': offers only code .*; accepted: andrade, moreira"):
        find("mishra").fetchable()


def test_an_unknown_release_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean andrade"):
        find("andrad")


def test_sizes_add_up_as_far_as_they_are_known() -> None:
    assert find("mishra").about_bytes == 231_000_000 + 576_000_000 + 586_000_000 + 3 * 5_000
    assert find("andrade").about_bytes is None


@pytest.mark.parametrize(
    "change",
    [
        {"status": "free"},
        {"files": [{"name": "../x"}]},
        {"files": [{"name": "x", "address": "ftp://x"}]},
        {"files": [{"name": "x", "sha256": "abc"}]},
        {"files": [{"name": "x", "num_bytes": 0}]},
        {"colour": "red"},
    ],
)
def test_a_catalogue_with_a_mistake_is_refused(change: dict[str, object]) -> None:
    good = {"name": "x", "title": "t", "citation": "c", "status": "open", "what": "w", "note": "n"}
    assert validate(Release, good, "test").name == "x"
    with pytest.raises(ConfigError):
        validate(Release, good | change, "test")
