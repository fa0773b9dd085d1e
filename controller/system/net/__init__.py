"""Network devices by rtnetlink: links, qdiscs, classes, filters."""
