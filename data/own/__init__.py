"""Data files of users: measurements of other tools, mapped to tidy tables."""
