"""Loading BPF objects; maps and ring buffers."""
