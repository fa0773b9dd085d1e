"""The site builds without a warning, asks no other host for anything, and leads newcomers to their task."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TASKS = {
    "Train my own policy": "notebooks/own-policy.html",
    "Import my CSV": "notebooks/own-data.html",
    "Reproduce a study": "notebooks/reproduce.html",
    "Put it beside my UPFs": "tutorials/your-own-upfs.html",
    "Cite it": "cite.html",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout + done.stderr == ""
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_page_is_whole_and_needs_no_other_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text()
        assert not re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+href="https?://fonts', text), (
            page
        )
        if page.name != "404.html":
            for target in re.findall(r'(?:href|src)="([^"#?]+)[^"]*"', text):
                if not re.match(r"[a-z]+:|//", target):
                    assert (page.parent / target).exists(), (page, target)
    start = (site / "index.html").read_text()
    for task, target in TASKS.items():
        assert re.search(rf'href="{re.escape(target)}"[^>]*><b>{task}</b>', start), task
    assert 'id="slicepilot.env.environments.slice_env.SliceEnv"' in (site / "api" / "environments.html").read_text()


def test_tasks_and_navigation_lead_to_files_that_are_there() -> None:
    start = (ROOT / "docs" / "index.md").read_text()
    for target in re.findall(r'href="([^"]+)\.html"', start):
        assert list((ROOT / "docs").glob(f"{target}.*")), target
    named = set(re.findall(r"- (?:[A-Z]\w*: )?([a-z][\w/-]+)\.md", (ROOT / "mkdocs.yml").read_text()))
    there = {
        str(path.relative_to(ROOT / "docs").with_suffix(""))
        for path in (ROOT / "docs").rglob("*")
        if path.suffix in {".md", ".ipynb"}
    }
    assert named - there == {"changelog", "cli", "contributing", "security"}
