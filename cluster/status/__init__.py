"""Status in the API: reports on SliceSets, their sums, Events, and the overview of ``k8s status``."""
