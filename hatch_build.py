"""Hooks of the build: a wheel's compiled programs, and the description that a package index shows.

Where Go, clang and the headers of libbpf are at hand, a wheel gets the user plane's programs (Go) and the probe's
objects (BPF), all built from the very sources that it is built from, and the tag of their platform. Elsewhere it is
pure Python, and the build says why. SLICEPILOT_WHEEL takes the choice away: ``platform`` fails where they cannot be
built, ``pure`` leaves them out, ``auto`` is the rule above. GOARCH builds for another machine; the objects are the same
for all that are little-endian.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

CHOICES = ("auto", "platform", "pure")

# The programs are static: no C library limits where they run. PEP 600 has no tag for that; 2.17 is the oldest in use.
PLATFORMS = {"amd64": "manylinux_2_17_x86_64", "arm64": "manylinux_2_17_aarch64"}

# Static, for the oldest processor of the architecture, without a download of another Go.
GO_ENVIRONMENT = {
    "CGO_ENABLED": "0",
    "GOOS": "linux",
    "GOAMD64": "v1",
    "GOARM64": "v8.0",
    "GOTOOLCHAIN": "local",
}
GO_BUILD = ("build", "-trimpath", "-buildvcs=false", "-buildmode=default", "-ldflags=-s -w")

# Modules that the programs contain, the main one aside: path, version, folder.
GO_MODULES = ("list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}\t{{.Dir}}{{end}}{{end}}")

GO_ITSELF = "Go's runtime and library"

# Markdown's links and images of files of the repository: on an index they would lead nowhere.
RELATIVE_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:|#)[^)]+\)")
RELATIVE_IMAGE = re.compile(r"!\[[^\]]*\]\((?![a-z]+:)[^)]+\)\n*")


class BuildError(RuntimeError):
    """The programs cannot be built on this machine."""


class ProgramsHook(BuildHookInterface[Any]):
    """Adds the programs to a wheel. Does nothing for an editable install or a source distribution."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what goes in; raises BuildError where it must and cannot, ValueError for an unknown choice."""
        if self.target_name != "wheel" or version == "editable":
            return
        choice = os.environ.get("SLICEPILOT_WHEEL") or "auto"
        if choice not in CHOICES:
            raise ValueError(f"SLICEPILOT_WHEEL = {choice!r}; accepted: {', '.join(CHOICES)}")
        if choice == "pure":
            return
        self._staging = tempfile.TemporaryDirectory(prefix="slicepilot-wheel-")
        try:
            tag = build_programs(Path(self.root), Path(self._staging.name))
        except BuildError as error:
            if choice == "platform":
                raise
            self.app.display_warning(f"a pure Python wheel, without the user plane and the probe: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"
        build_data["force_include"][self._staging.name] = "slicepilot"
        self.app.display_info(f"a wheel for {tag}, with the user plane and the probe")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is written: what was built for it can go."""
        del version, build_data, artifact_path
        if hasattr(self, "_staging"):
            self._staging.cleanup()


class DescriptionHook(MetadataHookInterface):
    """The README as an index can show it: without images and links of the repository's files."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": RELATIVE_LINK.sub(r"\1", RELATIVE_IMAGE.sub("", text)),
        }


def build_programs(root: Path, package: Path) -> str:
    """Build the programs into a folder that becomes part of the package `slicepilot`; returns the platform's tag.

    Raises:
        BuildError: a compiler is missing or fails, or nothing is known of its platform.
    """
    bin_folder, objects = package / "testbed" / "bin", package / "controller" / "telemetry" / "bpf"
    bin_folder.mkdir(parents=True)
    objects.mkdir(parents=True)
    go = shutil.which("go")
    if go is None:
        raise BuildError("no go on PATH")
    source = root / "testbed"
    architecture = _output([go, "env", "GOARCH"], source).strip()
    if architecture not in PLATFORMS:
        raise BuildError(f"GOARCH = {architecture}; accepted: {', '.join(PLATFORMS)}")
    _output([str(root / "controller" / "telemetry" / "bpf" / "build.sh"), str(objects)], root)
    _output([go, *GO_BUILD, "-o", f"{bin_folder}/", "./cmd/..."], source)
    (bin_folder / "LICENSES.txt").write_text(_licenses(go, source), encoding="utf-8")
    return PLATFORMS[architecture]


def _licenses(go: str, source: Path) -> str:
    """The licences of what the Go programs contain beside our own code; BSD and MIT ask for their text with a copy."""
    folders = {GO_ITSELF: Path(_output([go, "env", "GOROOT"], source).strip())}
    for line in _output([go, *GO_MODULES, "./cmd/..."], source).splitlines():
        module, folder = line.split("\t")
        folders[module] = Path(folder)
    parts = ["The programs in this folder contain the following, under the licences given.\n"]
    for name, folder in sorted(folders.items()):
        texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("LICENSE*")) if file.is_file()]
        if not texts and name == GO_ITSELF:  # a distribution's Go keeps its licence elsewhere
            texts = ["BSD-3-Clause, https://go.dev/LICENSE\n"]
        if not texts:
            raise BuildError(f"no licence with {name} in {folder}")
        parts.append("\n".join([f"{'-' * 80}\n{name}\n", *texts]))
    return "\n".join(parts)


def _output(command: list[str], folder: Path) -> str:
    """What a command prints; raises BuildError with its last line of complaint."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=os.environ | GO_ENVIRONMENT, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise BuildError(f"{command[0]}: {error}") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise BuildError(f"{Path(command[0]).name}: {last[0]}")
    return done.stdout
