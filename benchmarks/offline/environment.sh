#!/usr/bin/env bash
# Makes build/offline-reference: an environment of its own for d3rlpy, which pins an older Gymnasium than slicepilot's.
# Prints the path of its Python. Does nothing where it is up to date.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
target=$root/build/offline-reference
uv=$(command -v uv || echo "$root/.uv-bootstrap/bin/uv")
if [[ ! $target/.installed -nt $here/requirements.txt ]]; then
    "$uv" venv --quiet --clear --python 3.11 "$target" >&2
    "$uv" pip sync --quiet --python "$target" --require-hashes "$here/requirements.txt" >&2
    touch "$target/.installed"
fi
echo "$target/bin/python"
