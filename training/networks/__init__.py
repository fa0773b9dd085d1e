"""PyTorch networks for any number of slices; only training imports them."""
