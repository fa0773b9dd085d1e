"""Episodes: what all learning from logs takes and all recorders give."""
