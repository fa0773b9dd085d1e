"""Published studies: their releases, and readers of their files."""
