"""An offline policy goes on learning where it acts, under a guard."""
