"""Memory that a package takes of a process: ``python -m tests.measure_imports``.

Each is imported, and used as slicepilot would, in a process of its own that has NumPy already. Of what it imports
itself a process of slicepilot has some anyway: there it takes less.
"""

import subprocess
import sys

USES = {
    "pyarrow": "import pyarrow.parquet",
    "kubernetes": "import kubernetes.client, kubernetes.config; kubernetes.client.ApiClient()",
    "numba": "import numba; numba.njit(lambda x: x + 1)(1)",
    "onnxruntime": "import onnxruntime",
    "pyroute2": "import pyroute2",
    "gymnasium": "import gymnasium",
}
MEASURE = """
import sys
import numpy

def pss_mib():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024

before = pss_mib()
exec(sys.argv[1])
print(pss_mib() - before)
"""


def main() -> None:
    for package, use in USES.items():
        done = subprocess.run([sys.executable, "-c", MEASURE, use], check=True, capture_output=True, text=True)
        print(f"{package:12} {float(done.stdout):6.1f} MiB")


if __name__ == "__main__":
    main()
