"""The control loop: observe, infer, guard, apply, at absolute times."""
