"""A report as one HTML file: self-contained, in light and dark, on a phone and on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template


def page(title: str, meta: str, sections: Sequence[tuple[str, str, str]], footer: str) -> str:
    """The whole document.

    Args:
        title: plain text, as ``meta`` (the line below it) and ``footer`` are.
        sections: anchor, heading and HTML of each.
    """
    template = Template(
        resources.files("slicepilot.training.reports").joinpath("report_template.html").read_text(encoding="utf-8")
    )
    return template.substitute(
        title=escape(title),
        meta=escape(meta),
        nav="".join(f'<a href="#{escape(anchor)}">{escape(name)}</a>' for anchor, name, _ in sections),
        body="\n".join(
            f'<section id="{escape(anchor)}"><h2>{escape(name)}</h2>\n{content}</section>'
            for anchor, name, content in sections
        ),
        footer=escape(footer),
    )


def table(head: Iterable[str], rows: Iterable[str], words: Iterable[str] = ()) -> str:
    """A table that scrolls on its own, of HTML rows; columns named in ``words`` hold text, the others figures."""
    left = set(words)
    cells = "".join(f'<th scope="col"{" class=words" if name in left else ""}>{escape(name)}</th>' for name in head)
    content = f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{content}</div>'


def picture(svg: str, caption: str) -> str:
    """A drawing with its caption; nothing without a drawing."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" if svg else ""


def bullets(items: Iterable[str]) -> str:
    """A list of HTML items."""
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"
