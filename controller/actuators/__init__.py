"""What moves a node's knobs: CPU quota, group weight, process nice, egress rate; remembered and restored."""
