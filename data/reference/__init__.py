"""Figures of published studies of slice isolation at the 5G user plane, as CSV with their sources in README.md."""

from .tables import (
    ApplicationMix,
    CalibrationRow,
    PublishedSetting,
    ReplayedApplication,
    SeriesRow,
    application_mix,
    calibration_rows,
    calibration_series,
    published_settings,
    replayed_applications,
)

__all__ = [
    "ApplicationMix",
    "CalibrationRow",
    "PublishedSetting",
    "ReplayedApplication",
    "SeriesRow",
    "application_mix",
    "calibration_rows",
    "calibration_series",
    "published_settings",
    "replayed_applications",
]
