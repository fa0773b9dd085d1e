"""The control loop: observe, infer, guard and apply at absolute times."""
