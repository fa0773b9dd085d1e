"""The study of Mishra and Pandey (2026) reproduced."""

from .declared import Mishra

STUDY = Mishra()

__all__ = ["STUDY"]
