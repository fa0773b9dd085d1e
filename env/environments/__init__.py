"""The Gymnasium environments, single and vectorised."""
