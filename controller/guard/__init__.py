"""The rules that every decision has to pass before the kernel gets it."""
