"""The publisher: a process beside the loop that shows, records and hands on; see `process`."""
