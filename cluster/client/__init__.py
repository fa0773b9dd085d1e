"""Requests to the API server, lists that are kept up to date, and Leases."""
