"""A reproduced study as one HTML file to read, and its pictures."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from slicepilot.training.reports.page import bullets, page, svg_files, table

from .reproduce import COMPARED, Reproduction

WORDS = {True: "yes", False: "no", None: "-"}


def render(result: Reproduction) -> dict[str, str]:
    """The report and each of its pictures alone, as files by name."""
    study, document = result.study, result.document()
    panels = study.pictures(result.sources)
    sections = [
        ("findings", "What the study found", _findings(document["verdicts"])),
        ("pictures", "Pictures", f'<div class="figures">{"".join(panels)}</div>'),
        ("ranks", "In the order of the study", _ranks(document["ranks"])),
        ("rows", "Its tables", _rows(document["rows"])),
        ("how", "How the figures were made", bullets(escape(remark) for remark in document["remarks"])),
    ]
    about = f"{study.question} {study.citation}"
    files = {"report.html": page(f"{study.title}, reproduced", about, sections, "slicepilot reproduce")}
    for svg in svg_files("".join(panels)):
        name = re.sub(r"[^\w.-]+", "-", svg.partition('aria-label="')[2].partition('"')[0])
        files[f"{name}.svg"] = svg
    return files


def _findings(verdicts: list[dict[str, Any]]) -> str:
    head = ("Finding", "Criterion", "Published", *(name.capitalize() for name in COMPARED), "Figures", "Why not")
    rows = [
        (
            escape(each["claim"]),
            escape(each["criterion"]),
            WORDS[each["published"]],
            *(WORDS[each[name]] for name in COMPARED),
            escape("; ".join(f"{name}: {text}" for name, text in each["evidence"].items())),
            escape(each["cause"]),
        )
        for each in verdicts
    ]
    return table(head, rows, text=head)


def _ranks(ranks: list[dict[str, Any]]) -> str:
    head = ("Order of", "Source", "Rows", "Spearman's rank correlation")
    rows = [(escape(each["order"]), each["source"], str(each["rows"]), f"{each['spearman']:.2f}") for each in ranks]
    return table(head, rows, text=("Source",))


def _rows(rows: list[dict[str, Any]]) -> str:
    head = ("Row", "Published", *(name.capitalize() for name in COMPARED), "95% interval", "Difference %", "Verdict")
    shown = [
        (
            escape(row["text"]) + (f", {row['unit']}" if row["unit"] else ""),
            _number(row["published"]),
            *(_number(row[name]) for name in COMPARED),
            "" if row["interval"] is None else " to ".join(map(_number, row["interval"])),
            "" if row["difference_pct"] is None else f"{row['difference_pct']:+.1f}",
            escape(row["verdict"] + (f": {row['cause']}" if row["cause"] else "")),
        )
        for row in rows
    ]
    return table(head, shown, text=("Verdict",))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"
