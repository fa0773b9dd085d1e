"""Data released by the published studies: address, licence and citation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import ConfigDict

from slicepilot.configs import ConfigError, did_you_mean, read_yaml, validate

Status = Literal["open", "code-only", "on-request"]
STATUS_MEANINGS: dict[Status, str] = {
    "open": "its files can be fetched",
    "code-only": "offers only code",
    "on-request": "is given out by its authors on request",
}

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class ReleaseFile:
    """One file of a release.

    Attributes:
        name: its path in a folder of the release.
        address: where it lies; None where that is not known.
        about_bytes: the size that the study gives in round figures.
        known_bytes, known_sha256_start: of the file as others have had it, and the first digits of its SHA-256; no
            study has published them, so that another file is no fault, but is reported.
    """

    __pydantic_config__ = _STRICT
    name: str
    address: str | None = None
    about_bytes: int | None = None
    known_bytes: int | None = None
    known_sha256_start: str | None = None


@dataclass(frozen=True)
class Release:
    """The published data of a study.

    Attributes:
        name: what commands call it.
        status: one of `STATUS_MEANINGS`.
        doi, arxiv: of the paper.
        licence: None where none is known.
        what: what was measured; note: what to know before use.
    """

    __pydantic_config__ = _STRICT
    name: str
    title: str
    citation: str
    status: Status
    what: str
    note: str
    doi: str | None = None
    arxiv: str | None = None
    licence: str | None = None
    repository: str | None = None
    files: tuple[ReleaseFile, ...] = ()

    @property
    def about_bytes(self) -> int | None:
        """Size of all files of known size; None if no size is known."""
        sizes = [file.about_bytes for file in self.files if file.about_bytes is not None]
        return sum(sizes) if sizes else None

    def as_known(self, name: str, num_bytes: int, sha256: str) -> bool | None:
        """Whether a file has the contents of a known file of the release, whatever its name.

        Returns:
            False if it has the name of a known file but other contents; None where nothing is known of it.
        """
        known = [file for file in self.files if file.known_sha256_start is not None]
        if any(num_bytes == f.known_bytes and sha256.startswith(f.known_sha256_start or "") for f in known):
            return True
        return False if any(file.name.rpartition("/")[2] == name for file in known) else None

    @property
    def paper(self) -> str:
        """Identifiers of the paper, DOI and arXiv."""
        return ", ".join(filter(None, [self.doi and f"doi:{self.doi}", self.arxiv and f"arXiv:{self.arxiv}"]))

    def fetchable(self) -> tuple[ReleaseFile, ...]:
        """The files to fetch.

        Raises:
            ConfigError: there is nothing to fetch; says what there is instead.
        """
        files = tuple(file for file in self.files if file.address is not None)
        if self.status == "open" and files:
            return files
        where = f" ({self.repository})" if self.repository else ""
        others = [release.name for release in releases() if release.status == "open"]
        raise ConfigError(
            f"release = {self.name!r}: {STATUS_MEANINGS[self.status]}{where}. {self.note} "
            f"`dataset import` reads files that you have; expected {', '.join(others)}"
        )


@dataclass(frozen=True)
class _Catalogue:
    __pydantic_config__ = _STRICT
    releases: tuple[Release, ...]


@cache
def releases() -> tuple[Release, ...]:
    """All of them, in the catalogue's order."""
    package = __name__.rpartition(".")[0]
    with resources.as_file(resources.files(package).joinpath("releases.yaml")) as path:
        return validate(_Catalogue, read_yaml(path.resolve()), path.name).releases


def find(name: str) -> Release:
    """A release by name; raises ConfigError with the names that there are."""
    known = {release.name: release for release in releases()}
    if name not in known:
        raise ConfigError(f"release: unknown name {name!r}; {did_you_mean(name, known)}")
    return known[name]
