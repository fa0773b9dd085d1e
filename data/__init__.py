"""Readers of the released datasets, reference figures and the recorder's format."""
