"""Label selectors of the API.

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Expression:
    """An entry of ``matchExpressions``."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Whether it fits labels; ``NotIn`` fits those without the key as well."""
        if self.operator == "Exists":
            return self.key in labels
        if self.operator == "DoesNotExist":
            return self.key not in labels
        return (labels.get(self.key) in self.values) == (self.operator == "In")


@dataclass(frozen=True)
class LabelSelector:
    """All entries have to fit; an empty selector fits nothing here, so that no selector means every pod."""

    match_labels: Mapping[str, str]
    match_expressions: tuple[Expression, ...] = ()

    def fits(self, labels: Mapping[str, str]) -> bool:
        if not self.match_labels and not self.match_expressions:
            return False
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            item.fits(labels) for item in self.match_expressions
        )


def selector_of(document: Mapping[str, Any]) -> LabelSelector:
    """A selector from the API's JSON, which the schema has checked."""
    expressions = tuple(
        Expression(item["key"], item["operator"], tuple(item.get("values") or ()))
        for item in document.get("matchExpressions") or ()
    )
    return LabelSelector(dict(document.get("matchLabels") or {}), expressions)
