"""What a controller has seen, wanted and done: in shared memory while it runs, in Parquet files for later."""
