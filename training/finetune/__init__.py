"""Fine-tuning an offline policy where it acts, under the guard."""
