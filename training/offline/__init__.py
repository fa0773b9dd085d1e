"""Policies from logs alone: behaviour cloning, TD3+BC, CQL and IQL in PyTorch; only training imports them."""
