"""The study of Moreira et al. (2026) reproduced."""

from .declared import Moreira

STUDY = Moreira()

__all__ = ["STUDY"]
