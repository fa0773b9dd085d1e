"""Pods that follow their loops at the API server: slowly, within a declared range, with their own values put back."""
