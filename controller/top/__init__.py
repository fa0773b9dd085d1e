"""``slicepilot top``: a running controller in a terminal, read from shared memory."""
