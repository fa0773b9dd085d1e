"""Fine-tuning of an offline policy while it acts under the guard."""
