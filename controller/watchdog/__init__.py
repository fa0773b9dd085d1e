"""What was found comes back, whatever becomes of the controller; and nobody else's settings are fought over."""
