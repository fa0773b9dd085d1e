"""Published figures on slice isolation, as CSV; README.md has their sources."""

from .tables import (
    ApplicationMix,
    PublishedRow,
    PublishedSetting,
    ReplayedApplication,
    SeriesRow,
    application_mix,
    calibration_rows,
    calibration_series,
    published_settings,
    replayed_applications,
    verification_rows,
)

__all__ = [
    "ApplicationMix",
    "PublishedRow",
    "PublishedSetting",
    "ReplayedApplication",
    "SeriesRow",
    "application_mix",
    "calibration_rows",
    "calibration_series",
    "published_settings",
    "replayed_applications",
    "verification_rows",
]
