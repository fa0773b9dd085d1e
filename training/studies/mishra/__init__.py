"""The study of Mishra and Pandey (2026) reproduced."""
