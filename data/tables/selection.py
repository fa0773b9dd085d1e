"""Rows of a table by conditions, and columns put together to groups."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute

from slicepilot.configs import ConfigError, did_you_mean

from .tidy import Stream

compute: Any = pyarrow.compute  # its functions are made when it is loaded

SEPARATOR = ", "
"""Between the words of a group."""
TOGETHER = "+"
"""Between the names of the columns that make groups together."""
_CONDITION = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(==|=|!=|<=|>=|<|>)\s*(.*?)\s*")
_NAMES = {"==": "equal", "=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater"}
_NAMES |= {">=": "greater_equal"}


@dataclass(frozen=True)
class Condition:
    """A comparison of a column with a value: ``slice=slice1``, ``time_s >= 60``."""

    column: str
    comparison: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Raises ConfigError for a text that is none."""
        match = _CONDITION.fullmatch(text)
        if match is None or not match[3]:
            raise ConfigError(f"where = {text!r}: expected COLUMN=VALUE, or with !=, <, <=, > or >=")
        return cls(*match.groups())

    def __str__(self) -> str:
        return f"{self.column}{self.comparison}{self.value}"

    def _operand(self, kind: Any) -> Any:
        """The value converted to the column's type; raises ConfigError if that is impossible."""
        try:
            if pa.types.is_timestamp(kind):
                moment = datetime.datetime.fromisoformat(self.value)
                moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
                return pa.scalar(moment, pa.timestamp("us", "UTC")).cast(kind)
            if pa.types.is_boolean(kind):
                return {"true": True, "false": False}[self.value.lower()]
            return pa.scalar(float(self.value))
        except (ValueError, KeyError, pa.ArrowException):
            what = "a date such as 2026-11-24T10:00:00Z" if pa.types.is_timestamp(kind) else "a number"
            raise ConfigError(f"where = {str(self)!r}: {self.column} holds others; expected {what}") from None

    def mask(self, batch: pa.RecordBatch) -> Any:
        """Which rows fit (N,); those without a value do not. Raises ConfigError for a value that cannot be compared."""
        column = batch.column(self.column)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            operand: Any = pa.scalar(self.value, column.type)
        else:
            operand = self._operand(column.type)
            column = column if pa.types.is_timestamp(column.type) or pa.types.is_boolean(column.type) else (
                column.cast(pa.float64(), safe=False)
            )  # fmt: skip
        return compute.fill_null(getattr(compute, _NAMES[self.comparison])(column, operand), False)


def selected(stream: Stream, where: Sequence[Condition], by: Sequence[str] = ()) -> Stream:
    """The rows that fit all conditions.

    Two or more columns in ``by`` become a column of their words together, whose name is theirs, joined by `TOGETHER`.

    Raises:
        ConfigError: a column that the table lacks; as rows are read, a value that cannot be compared.
    """
    for name in [condition.column for condition in where] + (list(by) if len(by) > 1 else []):
        if name not in stream.schema.names:
            raise ConfigError(f"column = {name!r}: {did_you_mean(name, stream.schema.names)}")
    together = TOGETHER.join(by)
    schema = stream.schema
    if len(by) > 1:
        schema = schema.append(pa.field(together, pa.dictionary(pa.int32(), pa.string())))

    def batches() -> Iterator[Any]:
        for given in stream.batches:
            batch = given
            for condition in where:
                batch = batch.filter(condition.mask(batch))
            if len(by) > 1:
                columns = [_texts(batch.column(name)) for name in by]
                words = compute.binary_join_element_wise(*columns, SEPARATOR, null_handling="emit_null")
                coded = words.dictionary_encode()
                batch = pa.RecordBatch.from_arrays([*batch.columns, coded], schema=schema)
            if batch.num_rows:
                yield batch

    return Stream(schema, batches(), (*stream.groups, together) if len(by) > 1 else stream.groups)


def _texts(column: Any) -> Any:
    column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    return column.cast(pa.string())
