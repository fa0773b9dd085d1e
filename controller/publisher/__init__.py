"""The publisher: a process that serves metrics and records, and takes orders."""
