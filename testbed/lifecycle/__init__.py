"""Bringing a testbed up, finding it again, taking it down."""
