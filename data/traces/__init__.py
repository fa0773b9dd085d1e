"""Measured offered loads: rates from CSV, packets from captures."""
