"""What rehearsals offer to the rest of `slicepilot`; see `slicepilot.configs.backends`."""

from __future__ import annotations

from ..configs.backends import BackendPlugin

BACKEND = BackendPlugin(name="rehearsal", open_node="slicepilot.rehearsal.node:open_node")
