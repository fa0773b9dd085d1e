"""Making and judging agents: training, sweeps, evaluation, tracking and reports."""
