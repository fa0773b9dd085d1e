"""Texts of several publishers as one, in Prometheus' text format 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/: all lines of a metric are one group, and its HELP and TYPE
come once. So groups of the same name are put together, and each line gets labels that say whose it is. A scraper takes
a page as a whole, so what a publisher says is read as strictly as the strictest scraper does; a line has no timestamp.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .figures import PREFIX

_NAME = "[a-zA-Z_:][a-zA-Z0-9_:]*"
# Names that begin with two underscores are Prometheus' own: `__name__` would make it another metric.
_KEY, _VALUE = "(?!__)[a-zA-Z_][a-zA-Z0-9_]*", r'(?:[^"\\]|\\[\\"n])*+'
_LABEL, _LABELS = f'{_KEY}="{_VALUE}"', re.compile(f'({_KEY})="({_VALUE})"')
_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|NaN|[-+]Inf"
_NUMBERS = re.compile(_NUMBER)
_SAMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL}(?:,{_LABEL})*+)?)\}})? ({_NUMBER})")
_HELP = re.compile(rf"# HELP ({_NAME}) ((?! )(?:[^\\]|\\[\\n])++)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram|summary|untyped)")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")  # readers differ in which of them end a line
_PARTS = ("_bucket", "_sum", "_count")
"""Of histograms; a metric that ends so would be taken for a part of another one."""
_SUFFIXES = {"histogram": _PARTS, "summary": ("", "_sum", "_count")}
_BOUNDS = ("le", "quantile")
"""Labels whose values are numbers."""


@dataclass
class _Group:
    help: str | None = None
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    samples: list[str] = field(default_factory=list)

    def about(self, name: str) -> list[str]:
        """HELP and TYPE; of several types the one that most say, so that one publisher changes none of the others'."""
        kinds = [kind for kind, _ in self.kinds.most_common(1)]
        return [f"# HELP {name} {self.help}"] * (self.help is not None) + [f"# TYPE {name} {kind}" for kind in kinds]


class Joined:
    """Takes texts; `text` is all of them."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def add(self, text: str, labels: Mapping[str, str]) -> None:
        """Take all of a text, or nothing.

        Args:
            text: of one publisher.
            labels: that its lines get, and may not have; none: it is the agent's own, whose names nobody else may use.

        Raises:
            ValueError: a line is not as the format has it, or speaks for somebody else.
        """
        for name, found in _Reading(text, labels).groups.items():
            group = self._groups.setdefault(name, _Group())
            group.help = found.help if group.help is None else group.help
            group.kinds += found.kinds
            group.samples += found.samples

    @property
    def text(self) -> str:
        """All of it, in the order in which names came first."""
        return "".join(
            f"{line}\n" for name, group in self._groups.items() for line in (*group.about(name), *group.samples)
        )


class _Reading:
    """Groups of one text; raises ValueError."""

    def __init__(self, text: str, labels: Mapping[str, str]) -> None:
        self.groups: dict[str, _Group] = {}
        self._labels = labels
        self._given = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        self._name, self._group = "", _Group()
        self._names: frozenset[str] = frozenset()
        if found := _CONTROL.search(text):
            raise ValueError(f"no metric: {text[found.start() :][:100]!r}")
        for line in text.split("\n"):
            if line and not (self._about(line) or self._sample(line)):
                raise ValueError(f"no metric: {line[:100]!r}")

    def _about(self, line: str) -> bool:
        """Whether it is a HELP or TYPE in its place: of a new name, or once more of the same one before its samples."""
        found = (told := _HELP.fullmatch(line)) or _TYPE.fullmatch(line)
        if found is None:
            return False
        name, what = found.groups()
        if name != self._name:
            if name in self.groups or name.endswith(_PARTS) or (self._labels and name.startswith(PREFIX)):
                return False
            self._name, self._names = name, frozenset([name])
            self._group = self.groups[name] = _Group()
        if self._group.samples:
            return False
        if told is not None:
            fresh, self._group.help = self._group.help is None, what
        else:
            fresh, self._group.kinds = not self._group.kinds, collections.Counter([what])
            self._names = frozenset(name + suffix for suffix in _SUFFIXES.get(what, ("",)))
        return fresh

    def _sample(self, line: str) -> bool:
        """Whether it is one of the group's, and says nothing of whose it is."""
        found = _SAMPLE.fullmatch(line)
        if found is None or found[1] not in self._names:
            return False
        name, within, number = found.groups()
        pairs = _LABELS.findall(within or "")
        labels = dict(pairs)
        bounds = [labels[key] for key in _BOUNDS if key in labels]
        if len(labels) < len(pairs) or not labels.keys().isdisjoint(self._labels):
            return False
        if not (_is_number(number) and all(map(_is_number, bounds))):
            return False
        whose = ",".join(filter(None, (within, self._given)))
        self._group.samples.append(f"{name}{{{whose}}} {number}" if whose else f"{name} {number}")
        return True


def _is_number(text: str) -> bool:
    """Whether it is one that a float can hold; for 1e999 Go's parser has an error where Python's has infinity."""
    return _NUMBERS.fullmatch(text) is not None and (text.endswith("Inf") or not math.isinf(float(text)))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
