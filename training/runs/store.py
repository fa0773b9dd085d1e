"""The store of MLflow's runs: its address, its owner, and a first contact with a time limit."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from slicepilot.configs import ConfigError
from slicepilot.configs.ownership import check_own
from slicepilot.controller.watchdog.lock import holder_of, locked_file, private_folder

T = TypeVar("T")

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
DEFAULT_DATABASE, DEFAULT_ARTIFACTS = "mlflow.db", "mlartifacts"
_BESIDE_DATABASE = ("-journal", "-wal", "-shm")  # SQLite takes them for parts of the database (sqlite.org/tempfiles)
INSTEAD = "write --no-mlflow, or tracking: none in a configuration file, to go on without MLflow"
FIRST_CONTACT_S = 5.0
SETTING_UP_S = 180.0  # MLflow's migrations of a new database take seconds, on a busy machine a minute
SAID_AFTER_S = 1.0
_POLL_S = 0.05


def database_uri(path: Path) -> str:
    """Address of an SQLite database at an absolute path, which only this function quotes.

    SQLAlchemy decodes the path and ends it at a question mark. With the driver's name MLflow leaves the address alone;
    of ``sqlite:///`` it also makes the folders, without decoding them. Raises ConfigError for a path that is not UTF-8.
    """
    try:
        return f"sqlite+pysqlite:///{quote(str(path))}"
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"folder {str(path.parent)!r}: not UTF-8: expected another working folder; {INSTEAD}"
        ) from error


def default_uri() -> str:
    """A database in the working folder.

    The path is absolute: MLflow keeps a connection per address, also when the working folder changes.
    """
    return database_uri(Path.cwd() / DEFAULT_DATABASE)


def tracking_uri() -> str:
    """``MLFLOW_TRACKING_URI``, else the default."""
    return os.environ.get("MLFLOW_TRACKING_URI") or default_uri()


def shown(uri: str) -> str:
    """An address for errors: without its password."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:...@", uri)


def check_default() -> None:
    """Refuse a default database or artifact folder that other users control, since it decides where runs are written.

    Raises:
        ConfigError: names the file or folder.
    """
    instead = f"set MLFLOW_TRACKING_URI, or {INSTEAD}"
    for name in (DEFAULT_DATABASE, *(DEFAULT_DATABASE + end for end in _BESIDE_DATABASE), DEFAULT_ARTIFACTS):
        check_own(Path(name), "MLflow's default database: ", instead, shared=False)


def database_of(uri: str) -> Path | None:
    """The file of an SQLite database; None for other addresses."""
    if not uri.startswith(("sqlite:", "sqlite+pysqlite:")):
        return None
    import sqlalchemy

    url = sqlalchemy.make_url(uri)
    if not url.database or url.database == ":memory:" or "uri" in url.query:
        return None
    return Path(url.database).absolute()


@contextlib.contextmanager
def alone(database: Path | None) -> Iterator[None]:
    """Keep this user's other runs off the same database file: MLflow's migrations fail when two run at once.

    The lock is a file in a folder that only this user can open. Raises ConfigError when others hold it for too long.
    """
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    folder = database.parent.stat()
    path = private_folder() / f"mlflow-{folder.st_dev:x}-{folder.st_ino:x}"
    descriptor = locked_file(path, partial(_lock, database=database))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is locked: whoever waits for it opens another
        os.close(descriptor)


def _lock(descriptor: int, database: Path) -> None:
    started, said = time.monotonic(), False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - started
        if waited > SETTING_UP_S:
            holder = holder_of(descriptor)
            process = "another process" if holder is None else f"process {holder}"
            raise ConfigError(f"{database}: {process} has set it up for {waited:.0f} s: end it, or {INSTEAD}")
        if waited > SAID_AFTER_S and not said:
            _say(f"waiting for another run that sets up {database}, at most {SETTING_UP_S:.0f} s")
            said = True
        time.sleep(_POLL_S)


def check_database(database: Path) -> None:
    """Raise sqlite3.Error at once where nothing can be written, or no database is: MLflow would try for minutes."""
    with contextlib.closing(sqlite3.connect(database, timeout=FIRST_CONTACT_S)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("PRAGMA schema_version")
        connection.rollback()


def within_first_contact(uri: str, ask: Callable[[], T]) -> T:
    """The result of ``ask``, or its exception; raises ConfigError after `FIRST_CONTACT_S`.

    It runs in a thread, which is abandoned after that time, because looking up a name has no time limit of its own.
    """
    said: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            said.append(ask())
        except Exception as error:  # noqa: BLE001 (raised below)
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="first contact with MLflow")
    thread.start()
    thread.join(SAID_AFTER_S)
    if thread.is_alive():
        _say(f"waiting for MLflow at {shown(uri)}, at most {FIRST_CONTACT_S:.0f} s")
        thread.join(FIRST_CONTACT_S - SAID_AFTER_S)
    if failed:
        raise failed[0]
    if not said:
        raise ConfigError(
            f"MLFLOW_TRACKING_URI = {shown(uri)!r}: no answer in {FIRST_CONTACT_S:.0f} s; "
            f"expected a reachable MLflow server; {INSTEAD}"
        )
    return said[0]


def reason(uri: str, error: BaseException) -> str:
    """What went wrong, in a line; of a server or database the first cause, which libraries wrap in several more."""
    if uri.startswith(("http", *DATABASES)):
        while (cause := error.__cause__ or error.__context__) is not None:
            error = cause
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _say(line: str) -> None:
    """On standard error, also above a bar that is drawn there."""
    print(line, file=sys.stderr, flush=True)
