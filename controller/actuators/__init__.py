"""Setting the knobs of a node: CPU quota, cgroup weight, nice level, egress rate."""
