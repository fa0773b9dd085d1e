"""The testbed as a backend: real UPFs under generated loads, in real time."""
