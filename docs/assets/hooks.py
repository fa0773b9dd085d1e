"""Pages of the site from notebooks, commands and files outside `docs`, and links between them.

Notebooks are rendered from what they hold; `tests/docs/test_notebooks.py` runs them.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from slicepilot.cli.reference import page as commands

ROOT = Path(__file__).parents[2]
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "data/recorded/README.md": "recorded.md",
    "data/reference/README.md": "reference.md",
}
"""Files of the repository that are pages of the site."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>(?![a-z]+:|#)[^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(notebook)
        name = notebook.src_uri.replace(".ipynb", ".md")
        files.append(
            File.generated(config, name, content=rendered(json.loads(Path(notebook.abs_src_path).read_text())))
        )
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "cli.md", content=commands()))
    return files


def rendered(notebook: dict[str, Any]) -> str:
    """A notebook (nbformat 4) as Markdown: its text, its code and what that has printed."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [_output(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts)


def _output(output: dict[str, Any]) -> str:
    """Printed text, a picture, or a table, of which pandas also writes HTML."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![](data:image/png;base64,{''.join(data['image/png']).strip()})"
    if "text/html" in data:
        html = "".join(data["text/html"])
        return re.sub(r"<style.*?</style>|\s+(?=<)|(?<=>)\s+", "", html, flags=re.DOTALL)
    text = "".join(output.get("text") or data.get("text/plain", ""))
    return f"```text\n{COLOUR.sub('', text).rstrip()}\n```"


def on_page_markdown(text: str, page: Any, config: Any, files: Any) -> str:
    """Let links of the repository lead to the page of the same file; the name of a file stays where there is none."""
    del config
    names = {name: source for source, name in PAGES.items()}
    source = names.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def replaced(match: re.Match[str]) -> str:
        path, hash_, anchor = match["target"].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        name = PAGES.get(target, target.removeprefix("docs/").replace(".ipynb", ".md"))
        if files.get_file_from_path(name) is None:
            if not (ROOT / target).exists():
                raise ValueError(f"{source}: {match['target']}: there is no such file")
            return f"{match['text']} (`{target}`)"
        here = posixpath.dirname(page.file.src_uri) or "."
        return f"[{match['text']}]({posixpath.relpath(name, here)}{hash_}{anchor})"

    return LINK.sub(replaced, text)
