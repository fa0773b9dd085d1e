"""YAML of unknown origin: size, depth and number of nodes are bounded before anything is built.

The parser's events (YAML 1.1, "Processing YAML Information") are counted first. An alias counts as all nodes of its
anchor, so a document that is large only with its aliases resolved is refused like any large document.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from .errors import ConfigError
from .text import has_controls

MOST_BYTES, MOST_NODES, MOST_DEPTH = 1 << 20, 10_000, 32
LONGEST_NUMBER = 64  # characters: parsing a base-60 number of YAML 1.1 takes time with the square of its length

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBERS = {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp")}
_BLANKS = {ord("\n"): " ", ord("\t"): " "}
_DIRECTIVE = re.compile("(?:^|[\n\r\x85\u2028\u2029])\ufeff?%")


def parse_yaml(data: bytes, what: str) -> Any:
    """One document, by the safe loader; ``what`` begins errors, which quote nothing of the document.

    Raises:
        ConfigError: not UTF-8, not YAML (with line and column), too long, too deep, too many nodes, control
            characters in a text, which could be a name that is shown.
    """
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{what}: {len(data)} bytes of YAML; the limit is {MOST_BYTES}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        encoding = "UTF-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "not UTF-8"
        raise ConfigError(f"{what}: is {encoding}; expected YAML in UTF-8") from None
    try:
        if _DIRECTIVE.search(text):  # the parser compares each with all before it
            raise ConfigError(f"{what}: directives of YAML are not allowed")
        _check_limits(text, what)
        return yaml.load(text, _LOADER)  # a safe loader
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date
        where = getattr(error, "problem_mark", None)
        at = f" at line {where.line + 1}, column {where.column + 1}" if where else ""
        raise ConfigError(f"{what}: not valid YAML{at}") from error


def _check_limits(text: str, what: str) -> None:
    """Raises ConfigError for a document beyond the limits, or the parser's error."""
    resolve: Any = yaml.SafeLoader("").resolve
    sizes: dict[str, int] = {}  # number of nodes of an anchor
    open_nodes: list[tuple[str | None, int]] = []  # anchors of collections that have begun, with the count then
    count = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, start = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = count - start
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                raise ConfigError(f"{what}: an alias inside of its own anchor")
            count += sizes.get(str(event.anchor), 1)  # the loader reports an unknown anchor
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
            if has_controls(event.value.translate(_BLANKS)):
                line = 1 + (event.start_mark.line if event.start_mark else 0)
                raise ConfigError(f"{what}: control characters in the text at line {line}; expected printable text")
            if len(event.value) > LONGEST_NUMBER:
                tag = event.tag or resolve(yaml.ScalarNode, event.value, event.implicit)
                if tag in _NUMBERS:
                    raise ConfigError(
                        f"{what}: a number of {len(event.value)} characters; the limit is {LONGEST_NUMBER}"
                    )
        if count > MOST_NODES:
            raise ConfigError(f"{what}: more than {MOST_NODES} nodes of YAML, aliases resolved")
        if len(open_nodes) > MOST_DEPTH:
            raise ConfigError(f"{what}: YAML nested more than {MOST_DEPTH} deep")
