"""Offered loads that somebody measured: rates from CSV, packets from captures."""
