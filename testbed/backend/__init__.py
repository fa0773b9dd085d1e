"""The testbed as a backend: loads played on real UPFs, measured and controlled in real time."""
