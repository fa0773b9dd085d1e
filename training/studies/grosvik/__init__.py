"""The study of Grosvik (2023) reproduced."""

from .declared import Grosvik

STUDY = Grosvik()

__all__ = ["STUDY"]
