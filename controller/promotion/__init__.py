"""Promotion of bundles: criteria, evidence from a shadow recording, certificate."""
