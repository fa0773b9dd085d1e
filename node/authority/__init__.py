"""Which knobs act on a UPF's packets, and what else binds it, as far as looking tells."""
