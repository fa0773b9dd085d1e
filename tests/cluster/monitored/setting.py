"""What is monitored, and how."""

from tests.cluster.upfs import NAMESPACE

COUNT, MBPS, LOAD_S = 5, 4, 500
PORT = 9464
WITHIN_S = 120.0  # a first loop compiles
CADVISOR_S = 15
SLICES = [f"slice{i}" for i in range(1, COUNT + 1)]
LOOP = f"{NAMESPACE}.video"
