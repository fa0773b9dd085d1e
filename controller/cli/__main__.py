"""``python -m slicepilot.controller.cli`` is the command line too."""

from . import main

main()
