#!/bin/bash
# The whole offline path on the shipped dataset, with times: import, train, estimate, evaluate, bundle.
#
#     benchmarks/offline/whole_path.sh [ALGORITHM [FOLDER]]        # td3-bc build/offline-path
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"
algorithm=${1:-td3-bc}
out=${2:-build/offline-path}
shipped=$(python -c 'from slicepilot.data.recorded import path; print(path("testbed-contention"))')
rm -rf "$out"
mkdir -p "$out"

began=$EPOCHREALTIME
times=()
step() { # TITLE COMMAND...
    local title=$1 since=$EPOCHREALTIME
    shift
    printf '\n== %s: %s\n' "$title" "$*"
    "$@"
    times+=("$(awk -v title="$title" -v a="$since" -v b="$EPOCHREALTIME" 'BEGIN { printf "%-10s %6.1f s", title, b - a }')")
}

step import slicepilot dataset convert "$shipped" "$out/testbed-contention-v0"
step train slicepilot train --offline -c "$algorithm" --dataset "$out/testbed-contention-v0" --out "$out/run"
step estimate slicepilot dataset estimate "$out/testbed-contention-v0" --bundle "$out/run/bundle"
step evaluate slicepilot evaluate -c offline --bundle "$out/run/bundle" --results "$out/results" --no-mlflow
step bundle bash -c "cd '$out/run/bundle' && sha256sum --check SHA256SUMS"

printf '\n'
printf '%s\n' "${times[@]}"
awk -v a="$began" -v b="$EPOCHREALTIME" -v cpus="$(nproc)" \
    'BEGIN { printf "%-10s %6.1f s on %d CPUs\n", "all", b - a, cpus }'
