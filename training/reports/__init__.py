"""Self-contained HTML reports and their figures."""
