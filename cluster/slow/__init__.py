"""What the API server is told of the knobs that loops set: slowly, and inside the range that a SliceSet declares."""
