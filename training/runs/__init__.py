"""What every training run has around its learning: files, checkpoints, a tracked record."""
