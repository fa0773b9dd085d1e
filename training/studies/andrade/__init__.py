"""The study of Andrade and Wickboldt (2025) reproduced."""

from .declared import Andrade

STUDY = Andrade()

__all__ = ["STUDY"]
