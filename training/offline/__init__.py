"""Offline learning in PyTorch: behaviour cloning, TD3+BC and IQL."""
