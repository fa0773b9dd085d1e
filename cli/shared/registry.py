"""Policies that a command takes from MLflow's registry: ``models:/NAME@ALIAS`` wherever a bundle is taken."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from slicepilot.agents.learned.files import BundleFiles, refuse_file
from slicepilot.configs import ConfigError, FailureError
from slicepilot.configs.text import on_a_line
from slicepilot.data.files import replace_folder

SCHEME = "models:"
BUNDLE_HELP = "Policy bundle: its folder, generalist, or models:/NAME@ALIAS."
MOST_S = 120.0
"""For importing MLflow, first contact and the download, on a busy machine."""
MOST_ANSWER, MOST_ERROR = 10_000, 2000
_CODES = {2: ConfigError, 1: FailureError}


def local_bundle(name_or_path: str | Path, keep: Path | None = None) -> Path:
    """The folder of a bundle: what it is given, but for ``models:/NAME@ALIAS`` and ``models:/NAME/VERSION``.

    These are downloaded by a process of their own: the caller never imports MLflow. The downloaded files have to be the
    bundle whose digest the registry names, complete and unchanged.

    Args:
        keep: folder below which the download stays; None: it is removed when the process ends.

    Raises:
        ConfigError: a registry that does not answer, an unknown model, or files that were changed.
        FailureError: the download fails otherwise.
    """
    address = str(name_or_path)
    if not address.startswith(SCHEME):
        refuse_file(Path(name_or_path))
        return Path(name_or_path)
    with tempfile.TemporaryDirectory(prefix="slicepilot-models-") as folder:
        answer = ask_mlflow("download", address, folder)
        files = BundleFiles.read(folder)
        where = f"bundle = {address!r} (version {answer['version']})"
        try:
            files.check_sums()
        except ConfigError as error:
            raise ConfigError(f"{where}: {str(error).partition(': ')[2]}") from None
        if files.digest != answer["digest"]:
            raise ConfigError(
                f"{where}: its files have the digest {files.digest[:12]}, but the registry has "
                f"{on_a_line(str(answer['digest']))[:12]}: they were changed since it was registered"
            )
    name = f"{_plain(str(answer['name']))}-v{int(answer['version'])}-{files.digest[:12]}"
    if keep is None:
        keep = Path(tempfile.mkdtemp(prefix="slicepilot-bundles-"))
        atexit.register(shutil.rmtree, keep, ignore_errors=True)
    try:
        replace_folder(keep / name, files.parts)
    except OSError as error:
        raise ConfigError(f"bundle: {keep / name}: cannot be written: {error.strerror}") from error
    return keep / name


def ask_mlflow(*arguments: str) -> dict[str, Any]:
    """The answer of `slicepilot.training.runs.mlflow_process`, started with this process's environment and folder.

    Raises:
        ConfigError, FailureError: what it says on standard error, by its exit code.
    """
    process = start_mlflow(*arguments, stdin=subprocess.DEVNULL)
    try:
        out, err = process.communicate(timeout=MOST_S)
    except subprocess.TimeoutExpired:
        raise FailureError(f"MLflow: no end of `{arguments[0]}` in {MOST_S:.0f} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return answer_of(process.returncode, out, err)


def answer_of(code: int, out: bytes, err: bytes) -> dict[str, Any]:
    """What such a process has answered; raises ConfigError or FailureError."""
    if code == 0:
        answer: dict[str, Any] = json.loads(out[:MOST_ANSWER])
        return answer
    lines = err[-MOST_ERROR:].decode(errors="replace").strip().splitlines() or [f"MLflow: exit code {code}"]
    raise _CODES.get(code, FailureError)(on_a_line(lines[-1].removeprefix("slicepilot: error: "), MOST_ERROR))


def start_mlflow(*arguments: str, stdin: int) -> subprocess.Popen[bytes]:
    """Start `slicepilot.training.runs.mlflow_process`; nothing is imported from the working folder."""
    from slicepilot.controller.system.own_programs import ROOT, python

    return subprocess.Popen(
        [*python("slicepilot.training.runs.mlflow_process"), *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,  # Ctrl-C is for this process
    )


def _plain(name: str) -> str:
    """A registered model's name as part of a file's name."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "_" for letter in name)[:64]
