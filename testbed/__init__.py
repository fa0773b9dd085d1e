"""A local 5G user plane (UPFs, SMF and load in network namespaces of a machine), and the backend over it."""
