"""Tuning the constants of rules on the training mixture."""
