"""CSV files of any size, with their faults."""
