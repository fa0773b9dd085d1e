"""What is queried from a Prometheus server, and how it is reached: validated, and put together to PromQL.

``configs/prometheus/NAME.yaml`` (`Queries`) has the queries, with ``$NAME`` where a label goes; a node's configuration
(`PrometheusSpec`) has the server and the labels of its slices.
"""

from __future__ import annotations

import dataclasses
import math
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field

from slicepilot.configs import ConfigError, did_you_mean, load
from slicepilot.env.encoding import PERIOD_RANGE_S
from slicepilot.env.knobs import KNOB_FIELDS
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
NEEDED = ("offered_mbps", "carried_mbps", "delay_p50_us", "delay_p99_us")
"""Without these nobody could distinguish a promise that is kept from a broken promise."""
DERIVED = ("loss_ratio",)
QUERIED = tuple(name for name in SLICE_FIELDS if name not in DERIVED)
SCRAPES = 2
"""Least number of scrapes in a control period, so that successive periods have different samples."""
STALE_SCRAPES = 3
WINDOW = "window"

PromQl = Annotated[str, Field(min_length=1, max_length=4000)]
LabelName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
# No character that ends a quoted string of PromQL, or has a meaning outside of strings.
# A series without the label has an empty value (Prometheus, "Data model").
Label = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.:/@-]{0,252})?$")]
Labels = Mapping[LabelName, Label]
FilePath = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^/[^\x00\n]*$")]
Seconds = Annotated[float, Field(gt=0, le=3600)]


def _names(known: tuple[str, ...], rows: Any, *, needed: tuple[str, ...] = ()) -> Any:
    for name in rows:
        if name not in known:
            raise ValueError(f"unknown row {name!r}; {did_you_mean(name, known)}")
    for name in needed:
        if name not in rows:
            raise ValueError(f"no {name}; expected at least {', '.join(needed)}")
    return rows


@dataclass(frozen=True)
class RowQuery:
    """One row of telemetry.

    Attributes:
        query: PromQL whose result is one series per slice.
        samples: selector of the counter or gauge that the query uses, which shows the age of its samples and whether it
            is a single series. If several fresh series fit it, the row is not used, as it is ambiguous.
        scale: from the query's unit to the row's.
    """

    __pydantic_config__ = _STRICT
    query: PromQl
    samples: PromQl
    scale: Annotated[float, Field(gt=0)] = 1.0


@dataclass(frozen=True)
class Queries:
    """What is queried, by row.

    Attributes:
        description: in one line.
        scrape_interval_s: of the server, for all that is queried; the longest, where they differ.
        slices: rows of `SLICE_FIELDS`; ``loss_ratio`` is worked out from offered and carried.
        node: rows of `NODE_FIELDS`, one series each.
        knobs: that held, for datasets; a knob without a series is taken for none.
        labels: of slices that say nothing else.
        stale_s: older samples are not believed; none: three scrapes.
    """

    __pydantic_config__ = _STRICT
    description: str
    scrape_interval_s: Seconds
    slices: Annotated[Mapping[str, RowQuery], AfterValidator(partial(_names, QUERIED, needed=NEEDED))]
    node: Annotated[Mapping[str, RowQuery], AfterValidator(partial(_names, NODE_FIELDS))] = field(default_factory=dict)
    knobs: Annotated[Mapping[str, RowQuery], AfterValidator(partial(_names, KNOB_FIELDS))] = field(default_factory=dict)
    labels: Labels = field(default_factory=dict)
    stale_s: Seconds | None = None

    @classmethod
    def from_yaml(cls, name_or_path: str) -> Queries:
        """Load ``configs/prometheus/NAME.yaml`` or a user's file; raises ConfigError."""
        return load("prometheus", name_or_path, Queries)

    @property
    def most_age_s(self) -> float:
        """Samples that are older are not believed."""
        return self.stale_s or STALE_SCRAPES * self.scrape_interval_s


@dataclass(frozen=True)
class BasicAuth:
    """A name, and a file with its password."""

    __pydantic_config__ = _STRICT
    user: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^:\x00-\x1f]*$")]
    password_file: FilePath


@dataclass(frozen=True)
class ClientCertificate:
    """PEM files: the certificate, with those between it and its authority, and its key."""

    __pydantic_config__ = _STRICT
    file: FilePath
    key_file: FilePath


@dataclass(frozen=True)
class FileValue:
    """A value that is in a file, as a secret is."""

    __pydantic_config__ = _STRICT
    file: FilePath


OWN_HEADERS = ("connection", "content-length", "content-type", "accept-encoding", "host", "transfer-encoding")
"""Headers of a request that the client sets itself."""
SECRET_HEADERS = ("authorization", "cookie", "proxy-authorization", "x-api-key")
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")]  # RFC 9110, clause 5.6.2
HeaderText = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$")]
Headers = Mapping[HeaderName, HeaderText | FileValue]


def _allowed_headers(headers: Headers) -> Headers:
    names = [name.lower() for name in headers]
    for name in headers:
        if name.lower() in OWN_HEADERS:
            raise ValueError(f"{name}: the client sets it itself; expected another header, such as X-Scope-OrgID")
        if names.count(name.lower()) > 1:
            raise ValueError(f"{name}: given twice, since upper and lower case are the same here")
    return headers


def _server(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{error}; expected http://HOST:PORT or https://HOST:PORT") from None
    bad = parts.scheme not in {"http", "https"} or not parts.hostname or port == 0
    if bad or parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise ValueError("expected http://HOST:PORT or https://HOST:PORT, a path may follow, and no password")
    return url.rstrip("/")


@dataclass(frozen=True)
class PrometheusSpec:
    """A server, and where a node's slices are in it.

    Attributes:
        url: of the server, without ``/api``.
        queries: name or file of `Queries`.
        labels: of all slices; slices: of each, by name. They go before those of the queries.
        scrape_interval_s: where it is another than the queries say.
        token_file: with a bearer token; basic_auth: instead. Files are read again when they change.
        ca_file: PEM, authorities that alone may vouch for the server; none: those that the system trusts.
        client_certificate: that the server asks for.
        headers: of each request, such as ``X-Scope-OrgID`` of Mimir, Cortex and Loki or ``THANOS-TENANT``: a text, or
            ``{file: PATH}``.
        timeout_s: of one answer, from the connection to its last byte.
        most_mbytes: of one answer.
    """

    __pydantic_config__ = _STRICT
    url: Annotated[str, Field(max_length=2048, pattern=r"^[\x21-\x7e]+$"), AfterValidator(_server)]
    queries: str = "cadvisor"
    labels: Labels = field(default_factory=dict)
    slices: Mapping[str, Labels] = field(default_factory=dict)
    scrape_interval_s: Seconds | None = None
    token_file: FilePath | None = None
    basic_auth: BasicAuth | None = None
    ca_file: FilePath | None = None
    client_certificate: ClientCertificate | None = None
    headers: Annotated[Headers, AfterValidator(_allowed_headers)] = field(default_factory=dict)
    timeout_s: Annotated[float, Field(ge=0.1, le=30)] = 5.0
    most_mbytes: Annotated[float, Field(gt=0, le=64)] = 4.0

    def loaded_queries(self) -> Queries:
        """The queries, with this server's scrape interval; raises ConfigError."""
        queries = Queries.from_yaml(self.queries)
        if self.scrape_interval_s is None:
            return queries
        return dataclasses.replace(queries, scrape_interval_s=self.scrape_interval_s)


def check_spec(spec: PrometheusSpec) -> PrometheusSpec:
    """The same, if its fields are consistent; else raises ValueError."""
    if spec.token_file is not None and spec.basic_auth is not None:
        raise ValueError("token_file, basic_auth: both are given; expected one of them at most")
    parts = urlsplit(spec.url)
    assert parts.hostname is not None
    if parts.scheme == "http":
        for name in ("ca_file", "client_certificate"):
            if getattr(spec, name) is not None:
                raise ValueError(f"{name}: expected with https")
        secret = [
            name
            for name, given in spec.headers.items()
            if isinstance(given, FileValue) or name.lower() in SECRET_HEADERS
        ]
        if (spec.token_file or spec.basic_auth or secret) and not _loopback(parts.hostname):
            what = f"the header {secret[0]}" if secret else "the password"
            raise ValueError(f"url = {spec.url}: would show {what} to the network; expected https")
    if (spec.token_file or spec.basic_auth) and "authorization" in {name.lower() for name in spec.headers}:
        raise ValueError("headers.Authorization: expected none beside token_file and basic_auth, which set it")
    return spec


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Row:
    """A row as it is queried: PromQL of all slices, or of the node.

    Attributes:
        kind: what it is a row of; name: of the row.
        parts: two queries a slice, whose series say by their label `TAG` whose they are: ``N:v`` values, ``N:t`` times
            of samples. As many as fit are joined by `OR`.
        samples: each slice's selector, for messages.
        scale: of values.
    """

    kind: Literal["slice", "node", "knob"]
    name: str
    parts: tuple[str, ...]
    samples: tuple[str, ...]
    scale: float


TAG = "slicepilot_asked"
OR = " or "


def rows_of(queries: Queries, spec: PrometheusSpec, names: tuple[str, ...], period_s: float) -> list[Row]:
    """All rows of a node's slices.

    Args:
        queries: see `PrometheusSpec.loaded_queries`.
        names: of the slices.
        period_s: of control.

    Raises:
        ConfigError: a period that does not go with the scrapes, labels of an unknown slice, or a slice without labels.
    """
    check_period(queries, period_s)
    for name in spec.slices:
        if name not in names:
            raise ConfigError(f"telemetry.prometheus.slices.{name}: unknown slice; {did_you_mean(name, names)}")
    window = f"{math.ceil(1e3 * (period_s + queries.scrape_interval_s))}ms"
    common = {**queries.labels, **spec.labels, WINDOW: window}
    own = [(f"telemetry.prometheus.slices.{name}", common | dict(spec.slices.get(name, {}))) for name in names]
    result = [_row("slice", name, item, own) for name, item in queries.slices.items()]
    result += [
        _row("node", name, item, [("telemetry.prometheus.labels", common)]) for name, item in queries.node.items()
    ]
    return result + [_row("knob", name, item, own) for name, item in queries.knobs.items()]


def check_period(queries: Queries, period_s: float) -> None:
    """Refuse a control period that does not hold `SCRAPES` scrapes; raises ConfigError."""
    scrape_s, (_, longest_s) = queries.scrape_interval_s, PERIOD_RANGE_S
    if SCRAPES * scrape_s > longest_s:
        raise ConfigError(
            f"scrape_interval_s = {scrape_s:g}: expected at most {longest_s / SCRAPES:g}, since a control period is "
            f"{longest_s:g} s at most and holds {SCRAPES} scrapes"
        )
    if period_s < SCRAPES * scrape_s * (1 - 1e-6):
        raise ConfigError(
            f"control period = {period_s:g} s: expected {SCRAPES * scrape_s:g} to {longest_s:g}, twice the scrape "
            f"interval of {scrape_s:g} s or more"
        )


def _row(kind: Any, name: str, row: RowQuery, labelled: list[tuple[str, dict[str, str]]]) -> Row:
    parts, samples = [], []
    for number, (position, labels) in enumerate(labelled):
        query, selector = _filled(row.query, labels, position), _filled(row.samples, labels, position)
        samples.append(" ".join(selector.split()))
        parts += [_tagged(query, f"{number}:v"), _tagged(f"timestamp({selector})", f"{number}:t")]
    return Row(kind, name, tuple(parts), tuple(samples), row.scale)


def _tagged(query: str, tag: str) -> str:
    return f'label_replace(({query}), "{TAG}", "{tag}", "", "")'


def _filled(template: str, labels: Mapping[str, str], where: str) -> str:
    try:
        return string.Template(template).substitute(labels)
    except KeyError as error:
        raise ConfigError(f"{where}: no {error.args[0]}; expected {error.args[0]}: VALUE") from None
    except ValueError:
        raise ConfigError(f"query = {template!r}: expected $NAME for a label, $$ for a dollar") from None


def credential_files(spec: PrometheusSpec) -> dict[str, Path]:
    """Files that are read for it, by what they hold."""
    files = {
        "token": spec.token_file,
        "password": None if spec.basic_auth is None else spec.basic_auth.password_file,
        "ca": spec.ca_file,
        "certificate": None if spec.client_certificate is None else spec.client_certificate.file,
        "key": None if spec.client_certificate is None else spec.client_certificate.key_file,
    }
    given = {name: Path(path) for name, path in files.items() if path is not None}
    return given | {f"headers.{name}": Path(v.file) for name, v in spec.headers.items() if isinstance(v, FileValue)}
