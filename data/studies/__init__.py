"""The published studies: what was released, where it lies, how to read it."""
