"""Documents that fit a shape, for tests."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

PLAIN = {"string": "text", "integer": 1, "number": 1.0, "boolean": True}


def example(shape: Any) -> Any:
    """A document with every optional field, one entry in every list, and no null."""
    schema = TypeAdapter(shape).json_schema()
    return _example(schema, schema.get("$defs", {}))


def _example(kind: dict[str, Any], shapes: dict[str, Any]) -> Any:
    def inner(part: dict[str, Any]) -> Any:
        return _example(part, shapes)

    if "$ref" in kind:
        return inner(shapes[kind["$ref"].rpartition("/")[2]])
    if "anyOf" in kind:
        return inner(kind["anyOf"][0])
    if "const" in kind or "enum" in kind:
        return kind.get("const", kind.get("enum", [None])[0])
    if "prefixItems" in kind:
        return [inner(part) for part in kind["prefixItems"]]
    if kind.get("type") == "array":
        return [inner(kind["items"])]
    if "properties" in kind:
        return {name: inner(part) for name, part in kind["properties"].items()}
    if kind.get("type") == "object":
        values = kind.get("additionalProperties")
        return {inner(kind.get("propertyNames", {"const": "name"})): inner(values) if isinstance(values, dict) else 1}
    return PLAIN.get(str(kind.get("type")), 1)
