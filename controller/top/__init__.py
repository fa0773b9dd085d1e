"""``slicepilot top``: a running controller in a terminal, from its shared memory alone."""
