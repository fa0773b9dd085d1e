"""Figures of published studies of slice isolation at the 5G user plane, as CSV with their sources in README.md."""

from .tables import (
    ApplicationMix,
    CalibrationRow,
    PublishedSetting,
    ReplayedApplication,
    application_mix,
    calibration_rows,
    published_settings,
    replayed_applications,
)

__all__ = [
    "ApplicationMix",
    "CalibrationRow",
    "PublishedSetting",
    "ReplayedApplication",
    "application_mix",
    "calibration_rows",
    "published_settings",
    "replayed_applications",
]
