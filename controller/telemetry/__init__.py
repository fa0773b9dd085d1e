__doc__ = "x"
