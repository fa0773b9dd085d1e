"""The running loop: telemetry sources, actuators, guard, modes, metrics and the command line."""
