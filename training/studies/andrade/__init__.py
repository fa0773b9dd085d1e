"""The study of Andrade and Wickboldt (2025) reproduced."""
