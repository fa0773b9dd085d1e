"""``slicepilot dataset list``, ``fetch``, ``import``, ``convert`` and ``validate``."""

from typing import Literal, NotRequired

from slicepilot.configs.documents import Document
from slicepilot.data.episodes.missing import MissingOfSetting


class ReleaseFile(Document):
    """A file of a release; null for what is not known."""

    name: str
    """Its path in the release."""
    address: str | None
    about_bytes: int | None
    """The approximate size that the study states."""
    known_bytes: int | None
    """The size that others have observed."""
    known_sha256_start: str | None


class Release(Document):
    """The published data of a study; null for unknown values."""

    name: str
    title: str
    citation: str
    status: Literal["open", "code-only", "on-request"]
    what: str
    """What was measured."""
    note: str
    """What to know before use."""
    doi: str | None
    arxiv: str | None
    licence: str | None
    repository: str | None
    files: list[ReleaseFile]
    about_bytes: int | None


class FetchedFile(Document):
    """A downloaded file."""

    path: str
    bytes: int
    sha256: str
    as_known: bool | None
    """Whether size and checksum are those of the known file; null if these are unknown."""


class Fetched(Document):
    """The download of a release."""

    release: Release
    folder: str
    files: list[FetchedFile]
    failed: list[str]


class Fault(Document):
    """A faulty value."""

    line: int
    """Line of the file, or number of the document, from 1."""
    column: str | None
    value: str | None


class FaultKind(Document):
    """Faults of a kind."""

    count: int
    first: list[Fault]
    """The first 20."""


class Faults(Document):
    """The faults of a file."""

    total: int
    left_out: int
    """Rows that cannot be used."""
    notes: NotRequired[list[str]]
    """What was made of the file, such as a column that was left out or rows that were sorted."""
    kinds: dict[str, FaultKind]


class Source(Document):
    """The file that a table was made from."""

    name: str
    bytes: int
    sha256: NotRequired[str]


class ImportedTable(Document):
    """A tidy table."""

    path: str
    kind: str
    rows: int
    groups: list[str]
    """Columns that group the rows."""
    source: Source
    faults: Faults
    citation: str | None
    licence: str | None
    format: int
    as_known: bool | None
    """Whether its source is the file that others have observed; null where nothing is known."""


class ImportedRange(Document):
    """Episodes from a range of time in a Prometheus server."""

    out: str
    episodes: int
    steps: int
    left_out_steps: int
    """Control periods of episodes without any reward."""
    period_s: float
    missing: list[MissingOfSetting]
    why: list[str]
    """Reasons for missing measurements."""
    partial_answers: int
    """Answers that the server called partial or warned of; their part of the range is not measured."""
    remarks: list[str]
    """What the server remarked of other answers."""


class ProposedMap(Document):
    """A map of files, and what to check in it."""

    out: str
    files: list[str]
    formats: list[str]
    """Of each file."""
    rows: int
    """Of the table that the map makes of the files."""
    quantities: list[str]
    """Columns of that table."""
    unsure: list[str]
    """What is guessed, and what else it might be."""
    missing_for_episodes: list[str]
    """What offline learning needs besides; empty where the map makes episodes."""


class JoinedEpisodes(Document):
    """Episodes from tables; or `path` and `problem`."""

    path: str
    problem: NotRequired[str]
    episodes: NotRequired[int]
    steps: NotRequired[int]
    runs: NotRequired[int]
    points_left_out: NotRequired[int]
    """Points of runs without any reward."""
    missing: NotRequired[list[MissingOfSetting]]


class Imported(Document):
    """The results of an import."""

    tables: list[ImportedTable]
    episodes: JoinedEpisodes | None
    """From Andrade's tables or mapped files; null if the tables do not suffice or the map requests no episodes."""
    not_read: list[str]
    """Files of unknown kind."""
    unusable: list[str]


class DescribedColumn(Document):
    """A column of numbers, of a group of rows; null where there is no value."""

    group: str
    """Words of the columns that make the groups; empty without."""
    column: str
    rows: int
    """Of the group."""
    n: int
    """Values that are finite."""
    unlimited: int
    """Values that are infinite: knobs without a limit."""
    missing: int
    mean: float | None
    min: float | None
    p50: float | None
    p99: float | None
    max: float | None


class Described(Document):
    """What a table holds."""

    path: str
    rows: int
    """Rows that fit the conditions, in all groups."""
    by: list[str]
    where: list[str]
    columns: list[DescribedColumn]


class Converted(Document):
    """The file that was made."""

    path: str
    kind: str
    episodes: NotRequired[int]
    rows: int
    """Rows of a table; control periods of episodes."""


class StudyRow(Document):
    """A row of the table that the study has published, with that table's columns."""

    experiment: NotRequired[int]
    group: NotRequired[Literal["slice1", "others"]]
    cycles: NotRequired[int]
    """Runs of the experiment in the table."""
    missing: NotRequired[int]
    """Points without a value."""
    unit: NotRequired[Literal["mCPU", "ms", "Mibit/s"]]
    mean: NotRequired[float | None]
    median: NotRequired[float | None]
    std: NotRequired[float | None]
    iqr: NotRequired[float | None]
    slice: NotRequired[str]
    load: NotRequired[str]
    type: NotRequired[str]
    """Type of PFCP message."""
    n: int
    """Packets, messages or samples."""
    mean_us: NotRequired[float]
    p50_us: NotRequired[float]
    p99_us: NotRequired[float]


class Behaviour(Document):
    """An agent or setting that acted."""

    behaviour: str
    episodes: int
    steps: int
    reward_mean: float | None


class CheckedFile(Document):
    """A usable file, read to its end."""

    path: str
    kind: str
    rows: int
    """Rows of a table; control periods of episodes."""
    faults: Faults
    study: NotRequired[list[StudyRow]]
    """The study's published table, recomputed."""
    behaviours: NotRequired[list[Behaviour]]
    missing: NotRequired[list[MissingOfSetting]]


class Validated(Document):
    """The faults of files."""

    checked: list[CheckedFile]
    unusable: list[str]
    not_checked: list[str]
    """Files of unknown kind."""
