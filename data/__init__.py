"""Datasets: readers of published data, reference figures, recorded episodes."""
