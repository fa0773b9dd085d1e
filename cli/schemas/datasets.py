"""``slicepilot dataset list``, ``fetch``, ``import``, ``convert``, ``validate`` and ``describe``."""

from typing import Annotated, Any, Literal, NotRequired

from slicepilot.configs.documents import Document, Example

from .shared import AgentName, FilePath, Sha256, SliceName

Kind = Annotated[str, Example("mishra-forwarding")]
Citation = Annotated[str, Example("Mishra and Pandey, 2025")]
Licence = Annotated[str, Example("CC-BY-4.0")]
Bytes = Annotated[int, Example(1048576)]
Rows = Annotated[int, Example(12000)]
OtherFile = Annotated[str, Example("datasets/moreira/README.md")]
Unusable = Annotated[str, Example("datasets/moreira/latency.txt: none of its 3 rows can be used")]
ColumnName = Annotated[str, Example("delay_us", "column")]


class ReleaseFile(Document):
    """A file of a release."""

    name: Annotated[str, Example("o1_forwarding_exp_light.csv")]
    """Its place in a folder of the release."""
    address: Annotated[str, Example("https://example.org/o1_forwarding_exp_light.csv")] | None
    """Where it lies; null where that is not known."""
    num_bytes: Bytes | None
    """Its size, as published; null where it is not."""
    sha256: Sha256 | None
    """Its SHA-256, likewise."""
    about_bytes: Bytes | None
    """The size that the study gives in round figures; null where it does not."""
    known_bytes: Bytes | None
    """Its size as others have had it; null where that is not known."""
    known_sha256_start: Annotated[str, Example("d3627012")] | None
    """First digits of its SHA-256, likewise."""


class Release(Document):
    """What one study has released."""

    name: Annotated[str, Example("mishra")]
    """What commands call it."""
    title: str
    """Of the study."""
    citation: Citation
    """How to cite it."""
    status: Literal["open", "code-only", "on-request"]
    """How its files are to be had."""
    what: str
    """What was measured."""
    note: str
    """What to know before use."""
    doi: str | None
    """Of the paper; null without one."""
    arxiv: str | None
    """Number of the preprint; null without one."""
    licence: Licence | None
    """Null where none is known."""
    repository: Annotated[str, Example("https://example.org/dataset")] | None
    """Where the files lie; null where that is not known."""
    files: list[ReleaseFile]
    about_bytes: Bytes | None
    """Size of all files as far as it is known; null where nothing is."""


class FetchedFile(Document):
    """A file that was fetched."""

    path: FilePath
    """Where it is."""
    bytes: Bytes
    """Its size."""
    sha256: Sha256
    """Its SHA-256."""
    published_sha256: bool
    """Whether that is as published; false: none was published to compare with."""
    as_known: bool | None
    """Whether it is the release's file as others have had it; null where nothing is known of it."""


class Fetched(Document):
    """What was fetched of a release."""

    release: Release
    folder: Annotated[str, Example("datasets/mishra")]
    """Where it was put."""
    files: list[FetchedFile]
    failed: list[Annotated[str, Example("o1_pfcp_exp_light.csv: connection refused")]]
    """Files that could not be fetched, and why."""


class Fault(Document):
    """Something that is wrong."""

    line: Annotated[int, Example(17)]
    """Line of the file, from 1; number of the document where there are no lines."""
    column: ColumnName | None
    """The column at fault; null where it is none."""
    value: Annotated[str, Example("abc")] | None
    """What stands there, shortened; null where nothing does."""


class FaultKind(Document):
    """Faults of one kind."""

    count: int
    """How many."""
    first: list[Fault]
    """The first 20."""


class Faults(Document):
    """What is wrong in a file."""

    total: int
    """How many faults."""
    left_out: int
    """Rows that cannot be used."""
    kinds: dict[Annotated[str, Example("number", "fault")], FaultKind]
    """By kind."""


class Source(Document):
    """The file that a table was made of."""

    name: Annotated[str, Example("o1_forwarding_exp_light.csv")]
    """Its name."""
    bytes: Bytes
    """Its size."""
    sha256: NotRequired[Sha256]
    """Its SHA-256; left out by `describe` of that file itself."""


class ImportedTable(Document):
    """A tidy table that was made."""

    path: FilePath
    """Where it is."""
    kind: Kind
    """What it holds."""
    rows: Rows
    """Its rows."""
    groups: list[Annotated[str, Example("slice")]]
    """Columns that say what a row belongs to."""
    source: Source
    """The file that it was made of."""
    faults: Faults
    """What was wrong in that file."""
    citation: Citation | None
    """How to cite it; null where there is no study."""
    licence: Licence | None
    """Null where none is known."""
    format: Annotated[int, Example(1)]
    """Version of the table's format."""
    as_known: bool | None
    """Whether its file is the release's as others have had it; null where nothing is known of it."""


class MissingOfSetting(Document):
    """How much of what one setting's runs were to measure is missing."""

    behaviour: AgentName
    """The setting, or who acted."""
    episodes: int
    """Its runs."""
    steps: int
    """Control periods in them."""
    readings: int
    """Control periods times slices that had traffic in them: each should have been measured."""
    unmeasured: int
    """Those of these that were not."""
    unmeasured_by_slice: dict[SliceName, Annotated[float, Example(0.25)]]
    """Share of each slice's that were not; only slices that had traffic."""
    unscored_steps: int
    """Control periods without a reward, because too little of them was measured."""
    reward: float | None
    """Mean reward of the others, of what was measured in them; null without any."""
    reward_at_worst: float | None
    """The same if every promise that was not measured had been broken; null where that cannot be told."""


class ImportedRange(Document):
    """A range of time in a Prometheus server, as episodes."""

    out: Annotated[str, Example("log.parquet")]
    """The file or folder that was written."""
    episodes: int
    """In it."""
    steps: int
    """Control periods in them."""
    left_out_steps: int
    """Those of episodes of which none could be scored."""
    period_s: Annotated[float, Example(30.0)]
    """Control period."""
    missing: list[MissingOfSetting]
    """What could not be measured; empty where everything was."""
    why: list[Annotated[str, Example("slice1: delay_p99_us: its query gives nan, which is not believed")]]
    """Reasons, as they were at the ends of what was asked for at once."""


class JoinedEpisodes(Document):
    """Episodes that were made of a study's tables, or why not."""

    path: Annotated[str, Example("tables/andrade-episodes.parquet")]
    """Where they are, or would be."""
    problem: NotRequired[Annotated[str, Example(...)]]
    """Why there are none; the other fields are left out then."""
    episodes: NotRequired[int]
    """How many."""
    steps: NotRequired[int]
    """Control periods in them."""
    runs: NotRequired[int]
    """Runs of the study that they are of."""
    points_left_out: NotRequired[int]
    """Points of runs of which no step could be scored."""
    missing: NotRequired[list[MissingOfSetting]]
    """What was not measured, by setting."""


class Imported(Document):
    """What became of the files."""

    tables: list[ImportedTable]
    episodes: JoinedEpisodes | None
    """Of Andrade's tables; null where they are not all there."""
    not_read: list[OtherFile]
    """Files of no known kind."""
    unusable: list[Unusable]
    """A line for each file that cannot be used."""


class Converted(Document):
    """What was made."""

    path: FilePath
    """Where it is."""
    kind: Kind
    """What it holds; `episodes` for episodes."""
    episodes: NotRequired[int]
    """How many, where it holds episodes."""
    rows: Rows
    """Rows of a table; control periods of episodes."""
    left_out: NotRequired[int]
    """Rows of a table that cannot be used."""
    faults: NotRequired[Faults]
    """What was wrong in a table's file."""


class CheckedFile(Document):
    """A file that can be used, read to its end."""

    path: FilePath
    """Where it is."""
    kind: Kind
    """What it holds; `episodes` or `minari` for episodes."""
    rows: Rows
    """Rows of a table; control periods of episodes."""
    faults: Faults


class Validated(Document):
    """What is wrong in files."""

    checked: list[CheckedFile]
    unusable: list[Unusable]
    """A line for each file that cannot be used."""
    not_checked: list[OtherFile]
    """Files of no known kind."""


class Column(Document):
    """A column."""

    type: Annotated[str, Example("double")]
    """Of its values, as Arrow calls it."""
    unit: Annotated[str, Example("µs")] | None
    """That of its name; null for names, numbers of things and ratios."""
    nulls: int
    """Rows without a value."""
    min: float | str | bool | None
    """The least value, times as text; null for texts, and where there is none."""
    max: float | str | bool | None
    """The greatest."""


class StudyRow(Document):
    """A row as in the table that the study has published.

    Mishra's: delays by slice, or latencies by type of message. Andrade's: the last five minutes by experiment.
    """

    experiment: NotRequired[int]
    """Andrade's: knob setting."""
    group: NotRequired[Literal["slice1", "others"]]
    """Andrade's: the priority slice, or the others that had traffic."""
    cycles: NotRequired[int]
    """Andrade's: runs of the experiment in the table."""
    missing: NotRequired[int]
    """Andrade's: points from 900 to 1200 s of these runs and slices without a value."""
    unit: NotRequired[Literal["mCPU", "ms", "Mibit/s"]]
    """Andrade's: of mean, median and standard deviation."""
    mean: NotRequired[float | None]
    """Andrade's: mean; null without a value."""
    median: NotRequired[float | None]
    """Andrade's: median; null without a value."""
    std: NotRequired[float | None]
    """Andrade's: standard deviation; null with fewer than two values."""
    slice: NotRequired[Annotated[str, Example("URLLC")]]
    """Of delays."""
    load: NotRequired[Annotated[str, Example("light")]]
    """As the file's name says; empty where it does not."""
    type: NotRequired[Annotated[str, Example("Session Establishment")]]
    """Of latencies: type of PFCP message."""
    n: int
    """Packets, messages or samples."""
    mean_us: NotRequired[float]
    """Mean."""
    p50_us: NotRequired[float]
    """Of delays: median."""
    p99_us: NotRequired[float]
    """99th percentile."""


class DescribedTable(Document):
    """A table, or a file of a release."""

    path: FilePath
    """Where it is."""
    kind: Kind
    """What it holds."""
    source: Source
    """The file that it is, or was made of."""
    citation: Citation | None
    """How to cite it; null where there is no study."""
    licence: Licence | None
    """Null where none is known."""
    rows: Rows
    """Its rows."""
    columns: dict[ColumnName, Column]
    groups: dict[
        Annotated[str, Example("slice", "column")], dict[Annotated[str, Example("URLLC", "value")], int] | None
    ]
    """Rows by value, of columns that say what a row belongs to; null where there are too many values."""
    faults: Faults
    study: NotRequired[list[StudyRow]]
    """Of forwarding delays, PFCP latencies and Andrade's collections: rows as in the study's table."""


class Behaviour(Document):
    """Who acted."""

    behaviour: AgentName
    """Its name."""
    episodes: int
    """How many of it."""
    steps: int
    """Control periods in them."""
    reward_mean: float | None
    """Mean reward of the control periods that have one, of what was measured in them; null where none has."""
    densities: int
    """Control periods of which is known how likely the choice was."""


class DescribedEpisodes(Document):
    """Episodes: a file or folder of them, a Minari dataset, or the records of a controller."""

    path: Annotated[str, Example("log.parquet")]
    """Where they are."""
    kind: Literal["episodes", "minari", "records"]
    """As what."""
    episodes: int
    """How many."""
    steps: int
    """Control periods in them."""
    observation: Annotated[list[int], Example([5, 21])]
    """Shape of an observation."""
    action: Annotated[list[int], Example([5, 3])]
    """Shape of an action."""
    decisions: list[Annotated[str, Example("missed_ticks")]]
    """Further columns of the first episode."""
    behaviours: list[Behaviour]
    missing: list[MissingOfSetting]
    """What was not measured, by who acted; empty where everything was."""
    facts: dict[Annotated[str, Example("period_s", "fact")], Any]
    """What all episodes share, such as slices, reward and control period; whatever was written down."""
