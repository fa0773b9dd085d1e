"""Texts of several publishers as one, in Prometheus' text format 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/: all lines of a metric are one group, and its HELP and TYPE
come once. So groups of the same name are put together, and each line gets labels that say whose it is. Nothing is
parsed beyond that: a line is a name, labels or none, and a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([-+]?[0-9][0-9.e+-]*|NaN|[-+]Inf)")
_ABOUT = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) ?.*")


@dataclass
class _Group:
    about: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)


class Joined:
    """Takes texts; `text` is all of them."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def add(self, text: str, labels: Mapping[str, str]) -> None:
        """Take all of a text, or nothing.

        Args:
            text: of one publisher.
            labels: that its lines get; none of them is in it.

        Raises:
            ValueError: a line is not as the format has it.
        """
        given = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        for name, found in _groups(text, given):
            group = self._groups.setdefault(name, _Group())
            group.about = group.about or found.about
            group.samples += found.samples

    @property
    def text(self) -> str:
        """All of it, in the order in which names came first."""
        return "".join(f"{line}\n" for group in self._groups.values() for line in (*group.about, *group.samples))


def _groups(text: str, given: str) -> Iterable[tuple[str, _Group]]:
    found: list[tuple[str, _Group]] = []
    for line in text.split("\n"):
        if not line:
            continue
        if line.startswith("# "):
            about = _ABOUT.fullmatch(line)
            if about is None:
                raise ValueError(f"no metric: {line[:100]!r}")
            if not found or found[-1][0] != about[2]:
                found.append((about[2], _Group()))
            found[-1][1].about.append(line)
            continue
        sample = _SAMPLE.fullmatch(line)
        if sample is None or not found or not sample[1].startswith(found[-1][0].removesuffix("_total")):
            raise ValueError(f"no metric: {line[:100]!r}")
        name, labels, value = sample.groups()
        whose = ",".join(filter(None, (labels, given)))
        found[-1][1].samples.append(f"{name}{{{whose}}} {value}" if whose else f"{name} {value}")
    return found


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
