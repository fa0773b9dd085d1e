"""A controller's rehearsal: the simulator in real time, behind real cgroups."""
