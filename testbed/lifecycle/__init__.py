"""Starting, finding and removing a testbed."""
