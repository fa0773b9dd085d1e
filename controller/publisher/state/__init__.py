"""What a running controller has done, summed up from its ring: for metrics, pages and the terminal."""
