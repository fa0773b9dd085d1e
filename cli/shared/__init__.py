"""Output, signals and options that all commands share."""
