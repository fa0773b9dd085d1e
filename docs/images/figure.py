"""Takes a figure out of a report: ``figure.py report.html LABEL FILE.svg``, with the label that is read out for it."""

import re
import sys
from pathlib import Path

report, label, file = sys.argv[1:]
found = re.search(rf'<svg [^>]*aria-label="{re.escape(label)}">.*?</svg>', Path(report).read_text(), re.DOTALL)
if found is None:
    sys.exit(f"{report}: no figure {label!r}")
links = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
Path(file).write_text(found[0].replace("<svg ", f"<svg {links} ", 1) + "\n")
