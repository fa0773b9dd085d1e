"""Networks of PyTorch that decide and judge for any number of slices; only training imports them."""
