"""Readers of Mishra and Pandey: packets and PFCP messages of a UPF, timed in the kernel."""
