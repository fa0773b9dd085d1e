"""Speaking to the API server: requests, lists that are kept up to date, Leases."""
