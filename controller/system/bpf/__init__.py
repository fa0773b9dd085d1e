"""BPF objects: loading, maps, ring buffers."""
