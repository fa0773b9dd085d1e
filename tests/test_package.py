"""What is published: a source distribution and a wheel, and what an install of the wheel alone can do."""

from __future__ import annotations

import email
import filecmp
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from importlib import metadata, util
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import slicepilot
from slicepilot.configs import ConfigError
from slicepilot.testbed.lifecycle.processes import binary

ROOT = Path(__file__).parents[1]
PARTS = {link.name for link in (ROOT / ".links" / "slicepilot").iterdir() if link.is_dir()}
PROGRAMS = ("edge", "load", "sink", "smf", "ue", "upf")
BIN = "slicepilot/testbed/bin"
pytestmark = pytest.mark.slow
# What builds the programs; without it a wheel is pure. Where the machine has no Go, testbed/go.sh has put Go here.
PATH = os.pathsep.join([os.environ["PATH"], str(ROOT / ".tools/go/bin")])
COMPILERS = (
    all(shutil.which(name, path=PATH) for name in ("go", "clang")) and Path("/usr/include/bpf/bpf_helpers.h").exists()
)
needs_compilers = pytest.mark.skipif(not COMPILERS, reason="needs go, clang and libbpf-dev")


def build(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build into a folder, without a network for the backend."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), *options, str(ROOT)]
    variables = {name: value for name, value in os.environ.items() if name != "SLICEPILOT_WHEEL"}
    variables |= {"PATH": PATH} | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=variables)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(published: Path) -> Path:
    [path] = published.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pure")
    done = build(folder, "--wheel", SLICEPILOT_WHEEL="pure")
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = folder.glob("*.whl")
    return path


def tracked_files() -> set[str]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is no list of tracked files")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}


def description(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


# -- what is in the archives ---------------------------------------------------------------------------------------


def test_an_index_takes_both(published: Path) -> None:
    files = sorted(map(str, published.iterdir()))
    assert len(files) == 2
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_the_source_distribution_holds_what_is_tracked(published: Path) -> None:
    [path] = published.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    left_out = {name for name in tracked_files() - packed if not name.startswith((".links/", ".ci/", ".git"))}
    assert left_out == set()
    assert not [name for name in packed if name.endswith((".bpf.o", ".so")) or name.startswith("build/")]


def test_wheels_hold_every_file_of_the_package(wheel: Path, pure_wheel: Path) -> None:
    sources_of_programs = re.compile(r"testbed/(cmd|internal)/|testbed/(go|system)\.[a-z]+$")
    files = {
        file for file in tracked_files() if file.partition("/")[0] in PARTS and not sources_of_programs.match(file)
    }
    assert {"env/__init__.py", "controller/telemetry/bpf/build.sh"} <= files
    assert pure_wheel.name.endswith("-py3-none-any.whl")
    for path in (wheel, pure_wheel):
        packed = {name for name in zipfile.ZipFile(path).namelist() if ".dist-info/" not in name}
        compiled = {name for name in packed if name.startswith(f"{BIN}/") or name.endswith((".o", ".so"))}
        assert not compiled or path == wheel, "a pure wheel has no programs"
        assert packed - compiled == {f"slicepilot/{file}" for file in {*files, "__init__.py", "py.typed"}}


def test_the_version_comes_from_one_file(wheel: Path) -> None:
    version = slicepilot.__version__
    assert description(wheel)["Version"] == version
    assert metadata.version("slicepilot") == version, "the editable install is older than pyproject.toml: make setup"
    literal = re.compile(rf"(?<!Example\()[\"']{re.escape(version)}[\"']")
    sources = [ROOT / file for file in tracked_files() if file.partition("/")[0] in PARTS]
    assert [file for file in sources if file.suffix in {".py", ".go"} and literal.search(file.read_text())] == []
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


# Of Go, of the wheel's tag, and of ELF (e_machine).
@needs_compilers
@pytest.mark.parametrize(
    ("architecture", "machine", "elf_machine"), [("amd64", "x86_64", 62), ("arm64", "aarch64", 183)]
)
def test_a_platforms_wheel_has_static_programs_for_it(
    architecture: str, machine: str, elf_machine: int, tmp_path: Path
) -> None:
    done = build(tmp_path, "--wheel", GOARCH=architecture, SLICEPILOT_WHEEL="platform")
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = tmp_path.glob(f"*-py3-none-manylinux_2_17_{machine}.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        sources = {f"slicepilot/{file}" for file in tracked_files() if re.match(r"controller/.*\.bpf\.c$", file)}
        assert {name for name in names if name.endswith(".bpf.o")} == {f"{name.removesuffix('c')}o" for name in sources}
        assert {name for name in names if name.startswith(BIN)} == {
            f"{BIN}/{name}" for name in (*PROGRAMS, "LICENSES.txt")
        }
        for name in PROGRAMS:
            info, elf = archive.getinfo(f"{BIN}/{name}"), archive.read(f"{BIN}/{name}")
            assert info.external_attr >> 16 & 0o777 == 0o755
            assert int.from_bytes(elf[18:20], "little") == elf_machine
            assert interpreters(elf) == 0
        licenses = archive.read(f"{BIN}/LICENSES.txt").decode()
        modules = re.findall(r"^\s+(\S+) v\S+$", (ROOT / "testbed" / "go.mod").read_text(), re.MULTILINE)
        assert modules
        assert [module for module in ("Go's runtime", *modules) if f"\n{module} " not in licenses] == []


def test_where_a_wheel_is_built_makes_no_difference(wheel: Path, tmp_path: Path) -> None:
    """From the repository as from the unpacked source distribution: nothing of the machine's folders gets in."""
    done = build(tmp_path, "--wheel")
    assert done.returncode == 0, done.stdout + done.stderr
    assert contents(tmp_path / wheel.name) == contents(wheel)
    assert filecmp.cmp(tmp_path / wheel.name, wheel, shallow=False)
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if sys.prefix.encode() in archive.read(name)] == []


def contents(wheel: Path) -> list[tuple[str, int]]:
    """The files in their order, and a checksum of each: two wheels are too long for pytest to compare."""
    with zipfile.ZipFile(wheel) as archive:
        return [(item.filename, item.CRC) for item in archive.infolist()]


def interpreters(elf: bytes) -> int:
    """How many program headers of a 64-bit ELF file ask for a dynamic linker (PT_INTERP, elf(5))."""
    [start] = struct.unpack_from("=Q", elf, 32)
    size, count = struct.unpack_from("=HH", elf, 54)
    return sum(struct.unpack_from("=I", elf, start + i * size) == (3,) for i in range(count))


@pytest.fixture
def path_without_go(tmp_path: Path) -> str:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "clang", "uname", "dirname", "mkdir", "mv"):
        if (program := shutil.which(name)) is not None:
            (tmp_path / "bin" / name).symlink_to(program)
    return str(tmp_path / "bin")


def test_without_a_compiler_the_wheel_is_pure_and_the_build_says_why(tmp_path: Path, path_without_go: str) -> None:
    done = build(tmp_path / "dist", "--wheel", PATH=path_without_go)
    assert done.returncode == 0, done.stdout + done.stderr
    said = "a pure Python wheel, without the user plane and the probe: no go on PATH"
    assert said in done.stdout + done.stderr
    assert [file.name for file in (tmp_path / "dist").iterdir()] == [
        f"slicepilot-{slicepilot.__version__}-py3-none-any.whl"
    ]


# -- what an install of it can do ----------------------------------------------------------------------------------


class Install:
    """A virtual environment with a wheel and the pinned packages of the base, nothing else.

    Args:
        folder: where.
        wheel: what.
        pip: of another environment, to install it with; None makes an environment here, which takes seconds.
    """

    def __init__(self, folder: Path, wheel: Path, pip: Install | None = None) -> None:
        if util.find_spec("ensurepip") is None:
            pytest.skip("this Python comes without ensurepip (Debian: python3-venv)")
        venv.create(folder, with_pip=pip is None, symlinks=True)
        self.python = folder / "bin" / "python"
        self.site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        self.here = folder / "empty"
        self.here.mkdir()
        for name in base_packages():
            package = metadata.distribution(name)
            for top in {file.parts[0] for file in package.files or () if file.parts[0] not in {"..", "__pycache__"}}:
                target = self.site / top
                if not target.exists():
                    target.symlink_to(Path(str(package.locate_file(top))).resolve())
        command: list[str | Path] = [(pip or self).python, "-m", "pip", "--python", self.python, "install", "--quiet"]
        self.run(*command, "--no-index", "--no-deps", wheel, code=0)

    def run(self, *command: str | Path, code: int, **environment: str) -> subprocess.CompletedProcess[str]:
        """From an empty folder, without what this process sets for Python."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SLICEPILOT"))}
        done = subprocess.run(
            list(map(str, command)),
            cwd=self.here,
            env=kept | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def slicepilot(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.python.with_name("slicepilot"), *arguments, code=code, **environment)

    def evaluate(self, code: str) -> str:
        return self.run(self.python, "-P", "-c", code, code=0).stdout


def base_packages() -> list[str]:
    """Names in requirements/base.txt that this platform needs."""
    text = (ROOT / "requirements" / "base.txt").read_text().replace("\\\n", " ")
    lines = [line.partition(" --hash")[0] for line in text.splitlines() if re.match(r"[a-z0-9]", line)]
    wanted = map(Requirement, lines)
    return [item.name for item in wanted if item.marker is None or item.marker.evaluate()]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Install:
    return Install(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory, pure_wheel: Path, installed: Install) -> Install:
    return Install(tmp_path_factory.mktemp("pure-install"), pure_wheel, pip=installed)


def test_the_base_has_all_that_it_declares_and_nothing_heavy(installed: Install) -> None:
    installed.run(installed.python, "-m", "pip", "check", code=0)
    folder = installed.evaluate("import slicepilot.env; print(slicepilot.env.__file__)")
    assert Path(folder.strip()) == installed.site / "slicepilot" / "env" / "__init__.py"
    finder = "from importlib.util import find_spec; print([name for name in {} if find_spec(name)])"
    assert (
        installed.evaluate(finder.format(["torch", "ray", "mlflow", "pandas", "matplotlib", "numba"])) == "['numba']\n"
    )


def test_the_command_line(installed: Install) -> None:
    assert installed.slicepilot("--version").stdout == f"slicepilot {slicepilot.__version__}\n"
    assert "simulate" in installed.slicepilot("--help").stdout
    assert "--bundle" in installed.slicepilot("run", "--help").stdout
    said = installed.slicepilot("train", code=2).stderr
    assert re.fullmatch(r"slicepilot: error: train needs the package .*install slicepilot\[train\]\n", said)


def test_an_environment_with_an_agent_from_the_registry(installed: Install) -> None:
    code = """
import gymnasium, slicepilot.env
from slicepilot.agents.heuristics.registry import make
from slicepilot.env.simulator.scenario import Scenario

agent = make("captain", Scenario.from_yaml("multi-promise").slices)
env = gymnasium.make("slicepilot/SliceControl-v0", scenario="multi-promise")
observation, info = env.reset(seed=0)
observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
print(env.observation_space.contains(observation), float(reward) == float(reward), type(agent).__name__)
"""
    assert installed.evaluate(code) == "True True Captain\n"


@needs_compilers
def test_the_programs_of_the_wheel_run(installed: Install) -> None:
    checks = {check["name"]: check for check in json.loads(installed.slicepilot("doctor", "--json", code=1).stdout)}
    for name in PROGRAMS:
        assert checks[name]["ok"], checks[name]
        assert checks[name]["found"] == str(installed.site / "slicepilot" / "testbed" / "bin" / name)
        said = installed.run(checks[name]["found"], "--help", code=0)
        assert "\n  -" in said.stdout + said.stderr
    assert checks["probe"]["ok"]


LIVE_COMMANDS = [
    ("testbed", "up", "--name", "packaged"),
    ("run", "--agent", "no-control", "--scenario", "testbed-contention", "--seconds", "1", "--name", "packaged"),
]


@pytest.mark.parametrize("command", LIVE_COMMANDS)
def test_without_programs_one_line_says_what_to_do(pure: Install, command: tuple[str, ...]) -> None:
    # Programs in the working folder are nobody's: they would run as root.
    for folder in ("build/bin", "testbed/bin", "slicepilot/testbed/bin"):
        (pure.here / folder).mkdir(parents=True, exist_ok=True)
        for name in PROGRAMS:
            shutil.copy(sys.executable, pure.here / folder / name)
    said = pure.slicepilot(*command, code=2).stderr
    where = pure.site / "slicepilot" / "testbed" / "bin"
    assert said.startswith("slicepilot: error: testbed: this machine lacks ")
    assert f"upf, smf, load, sink in {where}: missing; install a wheel that has it (those for manylinux" in said
    assert said.count("\n") == 1
    relative = pure.slicepilot(*command, code=2, SLICEPILOT_BIN="build/bin").stderr
    assert "SLICEPILOT_BIN = 'build/bin': must be an absolute path" in relative


# -- which programs are taken --------------------------------------------------------------------------------------


def test_a_program_that_cannot_run_here_is_named_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLICEPILOT_BIN", str(tmp_path))
    own = Path(sys.executable).resolve().read_bytes()[:64]
    (tmp_path / "smf").write_bytes(own)
    with pytest.raises(ConfigError, match="smf' is not executable; use chmod"):
        binary("smf")
    (tmp_path / "smf").chmod(0o755)
    assert binary("smf") == tmp_path / "smf"
    other = own[:18] + struct.pack("=H", 0) + own[20:]  # EM_NONE
    for bad in (other, b"#!/bin/sh\n", b""):
        (tmp_path / "smf").write_bytes(bad)
        with pytest.raises(ConfigError, match=r"smf' is not built for this machine \(.+\); run `make live`"):
            binary("smf")
    with pytest.raises(ConfigError, match=r"upf' is missing; run `make live`"):
        binary("upf")
