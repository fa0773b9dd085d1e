"""Reading CSV files of any size, and reporting their faults."""
