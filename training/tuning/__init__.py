"""Constants of heuristics that are found by playing on the training mixture."""
