"""The command line: `main` runs a command and turns bad input into one line and exit code 2."""

from .app import main

__all__ = ["main"]
