"""Policies of other libraries: judged as they are, and made into bundles."""
