"""UPFs that somebody else has started, on this machine: found, measured, controlled."""
