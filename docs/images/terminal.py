"""A terminal's contents as a picture: ``tmux capture-pane -e -p | python docs/images/terminal.py TITLE FILE``."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

title, file = sys.argv[1:]
screen = Text.from_ansi(sys.stdin.read().rstrip())
with Path(os.devnull).open("w") as nowhere:
    console = Console(record=True, file=nowhere, width=max(len(line) for line in screen.plain.splitlines()))
    console.print(screen)
    picture = console.export_svg(title=title)
# Fonts that would be fetched from elsewhere: any of fixed width does.
picture = re.sub(r"@font-face\s*\{.*?\}", "", picture, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
Path(file).write_text(re.sub(r"[ \t]+$", "", picture, flags=re.MULTILINE))
