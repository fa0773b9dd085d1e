"""``slicepilot dataset``: fetch, import, check, describe, convert, record and analyse data."""
