"""What was measured, for people and files: totals since the start, and single packets."""
