"""Which knobs act on a UPF's packets, and other limits on the UPF."""
