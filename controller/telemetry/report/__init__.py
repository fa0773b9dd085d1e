"""Output of ``slicepilot probe``: totals, and single packets."""
