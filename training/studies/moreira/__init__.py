"""The study of Moreira et al. (2026) reproduced."""
