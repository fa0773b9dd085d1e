"""What is tracked installs anywhere: no registry's address, no path of one machine, every pin hashed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Put together from pieces, so that this file does not name what it forbids.
REGISTRY_HOSTS = [
    ".".join(labels)
    for labels in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("proxy", "golang", "org"),
        ("registry", "npmjs", "org"),
        ("crates", "io"),
    )
]
INDEX_OPTION = re.compile(r"(--(extra-)?index-url|--find-links|--trusted-host)[ =]+\S*[:/]")
HOME_OR_SCRATCH = re.compile(r"(?<![\w.$}~*-])/(?:root|home/\w+|Users/\w+|work|tmp/\w+)/")


@pytest.fixture(scope="module")
def tracked_files() -> list[Path]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is no list of tracked files")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(name) for name in listed.stdout.split("\0") if name]


def lines_matching(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    result = []
    for file in files:
        path = ROOT / file
        if path.is_symlink() or not path.is_file():
            continue
        lines = path.read_bytes().decode(errors="replace").splitlines()
        result += [f"{file}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if pattern.search(line)]
    return result


def test_no_registry_address(tracked_files: list[Path]) -> None:
    hosts = re.compile("|".join(map(re.escape, REGISTRY_HOSTS)))
    assert lines_matching(hosts, tracked_files) == []
    assert lines_matching(INDEX_OPTION, tracked_files) == []


def test_no_path_of_one_machine(tracked_files: list[Path]) -> None:
    assert lines_matching(HOME_OR_SCRATCH, tracked_files) == []


def test_no_lock_file_with_registry_addresses(tracked_files: list[Path]) -> None:
    assert [file for file in tracked_files if file.name in {"uv.lock", "poetry.lock", "pylock.toml"}] == []


@pytest.mark.parametrize("name", ["base", "lean", "agent", "train", "dev"])
def test_every_requirement_is_pinned_and_hashed(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    logical_lines = re.sub(r"#.*", "", text.replace("\\\n", " ")).splitlines()
    requirements = [line for line in logical_lines if line.strip()]
    assert len(requirements) > 10
    unpinned = [line for line in requirements if not re.match(r"[a-z0-9][a-z0-9._-]*==\S+.*--hash=sha256:", line)]
    assert unpinned == []


def test_smaller_requirement_files_agree_with_the_largest() -> None:
    def pins(name: str) -> set[str]:
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        return set(re.findall(r"^[a-z0-9._-]+==\S+", text, re.MULTILINE))

    assert pins("base") < pins("train") < pins("dev")
    assert pins("base") < pins("lean") < pins("train")
    assert pins("base") < pins("agent") < pins("dev")
