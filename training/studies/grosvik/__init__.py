"""The study of Grosvik (2023) reproduced."""
