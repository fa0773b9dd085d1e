"""The rules that every decision has to pass before it reaches the kernel."""
