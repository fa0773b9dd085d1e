"""The last word before the kernel: decisions are kept inside a declared envelope."""
