"""Rigs that measure: what the loop, the probe, a shadow controller cost; faults and soaks."""
