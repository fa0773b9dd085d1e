"""Episodes: the input of offline learning and the output of recorders."""
