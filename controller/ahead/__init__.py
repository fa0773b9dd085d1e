"""The controller's compiled functions, compiled ahead: the loop's process then needs no compiler."""
