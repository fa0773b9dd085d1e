#!/bin/sh
# Records testbed-contention.parquet anew on real UPFs, which takes five minutes and root; nothing else should run
# meanwhile. `make setup live` first.
set -eu
cd "$(dirname "$0")"
PATH="$PWD/../../.venv/bin:$PATH" exec slicepilot dataset record \
    --backend testbed --name sprec --scenario testbed-contention --period-ms 10 --reward delay-first \
    --agents experiment-5-scaled,experiment-6-scaled,experiment-7-scaled,experiment-8-scaled \
    --agents experiment-13-scaled,experiment-21-scaled,experiment-22-scaled,experiment-25-scaled \
    --agents random:7 \
    --agents exploring-experiment-5-scaled,exploring-experiment-7-scaled \
    --agents exploring-experiment-8-scaled,exploring-experiment-13-scaled \
    --episodes 2 --seed 0 --out testbed-contention.parquet
