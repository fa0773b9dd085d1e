"""Resizing and annotating pods, slowly and within the range that a SliceSet declares."""
