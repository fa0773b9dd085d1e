"""Published figures on slice isolation, as CSV; README.md has their sources."""

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
