"""What is said of all that in the API: an object per SliceSet and node, sums, Events."""
