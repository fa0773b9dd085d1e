"""The testbed backend lives here: a local 5G user plane in network namespaces."""
