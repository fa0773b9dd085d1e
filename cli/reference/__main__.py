"""``python -m slicepilot.cli.reference [FILE]`` writes the manual's page of commands and their JSON."""

from __future__ import annotations

import sys
from pathlib import Path

from slicepilot.data.files import replace_file

from .page import page

replace_file(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/cli.md"), page().encode())
