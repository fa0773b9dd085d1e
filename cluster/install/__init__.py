"""Installation of the Helm chart's objects without Helm."""
