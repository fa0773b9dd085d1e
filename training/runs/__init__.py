"""Files, checkpoints and tracking of training runs."""
