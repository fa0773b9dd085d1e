"""What an installation may be told: the chart's values, checked. The chart's own schema is made of this."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, model_validator
from pydantic.alias_generators import to_camel

from slicepilot.cluster.resources.names import camel
from slicepilot.configs import ConfigError, validate
from slicepilot.configs.loader import read_yaml

CHART = Path(__file__).with_name("chart")

EVERYTHING = {
    "follow": {"allowed": True, "annotations": True},
    "metrics": {
        "enabled": True,
        "podMonitor": {"create": True},
        "service": {"create": True},
        "serviceMonitor": {"create": True},
    },
}
"""Beside the chart's own values: under which there is every object that an installation can have."""

_STRICT = ConfigDict(extra="forbid", alias_generator=to_camel)
_PROFILE: dict[str, JsonValue] = {
    "if": {"properties": {"type": {"const": "Localhost"}}},
    "then": {"properties": {"localhostProfile": {"minLength": 1}}},
    "else": {"properties": {"localhostProfile": {"maxLength": 0}}},
}

Flag = Annotated[bool, Field(strict=True)]
Whole = Annotated[int, Field(strict=True)]
Port = Annotated[Whole, Field(ge=1, le=65535)]
Folder = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._][A-Za-z0-9._-]*)*$")]
Name = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9.-]{0,251}[a-z0-9])?$")]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Registry = Annotated[
    str, Field(pattern=r"^(https?://)?([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?$")
]
Words = dict[str, str]
Duration = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}(ms|s|m)$")]


@dataclass(frozen=True)
class ImageValues:
    """Which image agents run: by digest, else by tag, else by the chart's appVersion."""

    __pydantic_config__ = _STRICT
    repository: Annotated[str, Field(pattern=r"^[a-z0-9]+([._/:-]+[a-z0-9]+)*$")] = "slicepilot-agent"
    tag: Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$")] = ""
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"


@dataclass(frozen=True)
class NamedValues:
    """A name of something in the namespace."""

    __pydantic_config__ = _STRICT
    name: Name


@dataclass(frozen=True)
class NamespaceValues:
    """Whether the namespace is among the objects."""

    __pydantic_config__ = _STRICT
    create: Flag = False


@dataclass(frozen=True)
class ApiServerValues:
    """Where the API server is; none: at the service's address."""

    __pydantic_config__ = _STRICT
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9.:-]*$")] = ""
    port: Port = 443


@dataclass(frozen=True)
class RuntimeValues:
    """Whose files name containers, and where they are; none: in the runtime's usual place."""

    __pydantic_config__ = _STRICT
    name: Literal["containerd", "crio"] = "containerd"
    state_folder: Folder = ""


@dataclass(frozen=True)
class PriorityValues:
    """Of the agents' pods; no name: none."""

    __pydantic_config__ = _STRICT
    create: Flag = True
    name: Name | Literal[""] = "slicepilot-agent"
    value: Annotated[Whole, Field(ge=-2_147_483_648, le=1_000_000_000)] = 1_000_000


@dataclass(frozen=True)
class UpdateValues:
    """How a new version comes to the nodes."""

    __pydantic_config__ = _STRICT
    type: Literal["RollingUpdate", "OnDelete"] = "RollingUpdate"
    max_unavailable: Annotated[Whole, Field(ge=1, le=10_000)] = 1


@dataclass(frozen=True)
class BudgetValues:
    """What evictions through the API leave."""

    __pydantic_config__ = _STRICT
    create: Flag = True
    min_available: Annotated[Whole, Field(ge=0, le=100_000)] = 1


@dataclass(frozen=True)
class AdmissionValues:
    """Whether the API server holds each agent to its own node."""

    __pydantic_config__ = _STRICT
    create: Flag = True


@dataclass(frozen=True)
class ResourceValues:
    """As a container's in the API."""

    __pydantic_config__ = _STRICT
    requests: dict[str, str | int] = field(default_factory=lambda: {"cpu": "200m", "memory": "512Mi"})
    limits: dict[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True)
class ProfileValues:
    """A profile of the container: the runtime's own, none, or one of the node's by name."""

    __pydantic_config__ = ConfigDict(extra="forbid", alias_generator=to_camel, json_schema_extra=_PROFILE)
    type: Literal["RuntimeDefault", "Localhost", "Unconfined"] = "RuntimeDefault"
    localhost_profile: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*)?$")] = ""

    @model_validator(mode="after")
    def _named(self) -> ProfileValues:
        if (self.type == "Localhost") != bool(self.localhost_profile):
            raise ValueError("accepted: localhostProfile with type Localhost, and only there")
        return self


@dataclass(frozen=True)
class LoopsValues:
    """How many loops a node runs, and what each may keep."""

    __pydantic_config__ = _STRICT
    most: Annotated[Whole, Field(ge=1, le=64)] = 8
    most_in_namespace: Annotated[Whole, Field(ge=1, le=64)] = 4
    records_mb: Annotated[Whole, Field(ge=0, le=1_000_000)] = 64


@dataclass(frozen=True)
class FollowValues:
    """Whether pods may be changed where SliceSets say so."""

    __pydantic_config__ = _STRICT
    allowed: Flag = False
    annotations: Flag = False


@dataclass(frozen=True)
class BundlesValues:
    """Where bundles and rules may come from that SliceSets refer to."""

    __pydantic_config__ = _STRICT
    config_map_namespaces: list[Namespace] = field(default_factory=list)
    registries: list[Registry] = field(default_factory=list)
    credentials_secret: Name | Literal[""] = ""
    authority_secret: Name | Literal[""] = ""
    trust_secret: Name | Literal[""] = ""


@dataclass(frozen=True)
class ServiceValues:
    """Whether there is a headless Service of the agents' metrics."""

    __pydantic_config__ = _STRICT
    create: Flag = False


@dataclass(frozen=True)
class MonitorValues:
    """An object of the Prometheus operator; its labels are what a Prometheus chooses its monitors by."""

    __pydantic_config__ = _STRICT
    create: Flag = False
    interval: Duration = "5s"
    scrape_timeout: Duration = "4s"
    labels: Words = field(default_factory=dict)


@dataclass(frozen=True)
class MetricsValues:
    """Whether agents serve metrics, on which port of their pods, and who is told."""

    __pydantic_config__ = _STRICT
    enabled: Flag = False
    port: Annotated[Port, Field(ge=1024)] = 9464
    pod_monitor: MonitorValues = field(default_factory=MonitorValues)
    service: ServiceValues = ServiceValues()
    service_monitor: MonitorValues = field(default_factory=MonitorValues)

    @model_validator(mode="after")
    def _served(self) -> MetricsValues:
        if self.service_monitor.create and not self.service.create:
            raise ValueError("accepted: serviceMonitor.create with service.create, which it finds agents by")
        return self


@dataclass(frozen=True)
class Values:
    """All of them; the chart's values.yaml says what each is for."""

    __pydantic_config__ = _STRICT
    highest_mode: Literal["shadow", "canary", "live"] = "shadow"
    loops: LoopsValues = LoopsValues()
    allow_exceed_limit: Flag = False
    follow: FollowValues = FollowValues()
    bundles: BundlesValues = field(default_factory=BundlesValues)
    metrics: MetricsValues = field(default_factory=MetricsValues)
    admission_policy: AdmissionValues = AdmissionValues()
    image: ImageValues = ImageValues()
    image_pull_secrets: list[NamedValues] = field(default_factory=list)
    namespace: NamespaceValues = NamespaceValues()
    api_server: ApiServerValues = ApiServerValues()
    host_network: Flag = False
    runtime: RuntimeValues = RuntimeValues()
    node_selector: Words = field(default_factory=dict)
    affinity: dict[str, Any] = field(default_factory=dict)
    tolerations: list[dict[str, Any]] = field(default_factory=lambda: [{"operator": "Exists"}])
    pod_annotations: Words = field(default_factory=dict)
    priority_class: PriorityValues = PriorityValues()
    update_strategy: UpdateValues = UpdateValues()
    termination_grace_period_seconds: Annotated[Whole, Field(ge=20, le=3600)] = 30
    resources: ResourceValues = field(default_factory=ResourceValues)
    pod_disruption_budget: BudgetValues = BudgetValues()
    seccomp: ProfileValues = ProfileValues()
    app_armor: ProfileValues = ProfileValues()


def schema() -> dict[str, Any]:
    """JSON schema of the values, which helm checks by: the chart's ``values.schema.json``.

    ``global`` is helm's own: it hands it to every chart.
    """
    made = TypeAdapter(Values).json_schema(by_alias=True)
    made["properties"]["global"] = {"type": "object"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_without_titles(made)}


def values(given: Mapping[str, Any] | None = None, source: str = "values") -> dict[str, Any]:
    """The chart's own values with what is given, as Helm merges them: maps key by key, all else whole.

    Args:
        given: a part of the values.
        source: begins errors.

    Raises:
        ConfigError: names the field, the value and what is accepted.
    """
    defaults = read_yaml(CHART / "values.yaml")
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{source}: {type(given).__name__}; accepted: a mapping, as the chart's values.yaml")
    found = merged(defaults, given or {})
    try:
        validate(Values, found, source)
    except ConfigError as error:
        raise ConfigError(camel(str(error))) from error
    return found


def assigned(texts: list[str]) -> dict[str, Any]:
    """Values of ``a.b=VALUE``: text where the chart has text, else read as YAML is.

    Raises:
        ConfigError: one has another form.
    """
    import yaml

    defaults = read_yaml(CHART / "values.yaml")
    found: dict[str, Any] = {}
    for text in texts:
        names, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z]+(\.[A-Za-z]+)*", names):
            raise ConfigError(f"--set {text!r}: accepted: NAME=VALUE or NAME.NAME=VALUE")
        try:
            is_text = isinstance(_at(defaults, names.split(".")), str)  # a tag 1.20 is no number
            parsed: Any = value if is_text else yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {text!r}: no YAML; accepted: NAME=VALUE") from error
        for name in reversed(names.split(".")):
            parsed = {name: parsed}
        found = merged(found, parsed)
    return found


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Maps key by key, all else as it is above."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        found[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return found


def _at(document: Any, names: list[str]) -> Any:
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _without_titles(document: Any) -> Any:
    """pydantic's titles repeat the names."""
    if isinstance(document, dict):
        return {
            key: _without_titles(value)
            for key, value in document.items()
            if key != "title" or not isinstance(value, str)
        }
    return list(map(_without_titles, document)) if isinstance(document, list) else document
