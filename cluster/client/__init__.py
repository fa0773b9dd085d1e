"""The API server: requests, lists that are kept up to date, Leases."""
