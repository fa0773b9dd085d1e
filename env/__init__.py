"""What an agent sees and does: slice specs, telemetry, knobs, encoding, reward, environments and the simulator."""
