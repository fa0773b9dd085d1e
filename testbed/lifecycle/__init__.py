"""Starting, inspecting and removing a testbed."""
