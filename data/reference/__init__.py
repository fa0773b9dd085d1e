"""Published figures on slice isolation, as CSV; README.md has their sources."""

from .tables import (
    ApplicationMix,
    ForwardingDelay,
    PfcpLatency,
    PublishedRow,
    PublishedSetting,
    ReplayedApplication,
    SeriesRow,
    application_mix,
    calibration_rows,
    calibration_series,
    forwarding_delays,
    pfcp_latencies,
    published_settings,
    replayed_applications,
    verification_rows,
)

__all__ = [
    "ApplicationMix",
    "ForwardingDelay",
    "PfcpLatency",
    "PublishedRow",
    "PublishedSetting",
    "ReplayedApplication",
    "SeriesRow",
    "application_mix",
    "calibration_rows",
    "calibration_series",
    "forwarding_delays",
    "pfcp_latencies",
    "published_settings",
    "replayed_applications",
    "verification_rows",
]
