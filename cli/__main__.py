"""``python -m slicepilot.cli`` is the command line too."""

from . import main

main()
