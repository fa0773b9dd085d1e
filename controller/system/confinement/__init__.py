"""What a process may ask the kernel for once it has started: seccomp filters, Landlock rules."""
