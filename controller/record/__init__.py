"""Records of ticks: in shared memory while a controller runs, in Parquet files for later."""
