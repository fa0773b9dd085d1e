"""Updates of pods in the API: pods slowly follow their loops within a declared range, and get their own values back."""
