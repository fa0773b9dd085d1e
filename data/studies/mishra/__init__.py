"""Mishra and Pandey: what a UPF does to each packet and PFCP message, timed in the kernel."""
