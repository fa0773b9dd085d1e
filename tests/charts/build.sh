#!/usr/bin/env bash
# Builds helm into build/charts, from the Go module proxy by the version and sums of go/go.mod and go/go.sum. Nothing is
# installed. The first time takes some minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD/tests/charts into=$PWD/build/charts
go=$(testbed/go.sh)
stamp=$into/.built-$(cat "$here"/go/go.{mod,sum} "$here/build.sh" | sha256sum | cut -c1-16)
version=$(awk '$1 == "helm.sh/helm/v3" || $2 == "helm.sh/helm/v3" {print $NF; exit}' "$here/go/go.mod")
[[ $version == v* ]] || { echo "go/go.mod: no version of helm" >&2; exit 1; }

if [[ ! -e $stamp ]]; then
	mkdir -p "$into/bin"
	echo "building helm $version into build/charts"
	cd "$here/go"
	export CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false -trimpath"
	# As helm's own Makefile: else it takes itself for v3.0, and the cluster that templates are for to be 1.20.
	names=helm.sh/helm/v3 minor=$(awk '$1 == "k8s.io/client-go" {split($2, part, "."); print part[2]; exit}' go.mod)
	flags="-X $names/internal/version.version=$version"
	for package in pkg/chartutil pkg/lint/rules; do
		flags+=" -X $names/$package.k8sVersionMajor=1 -X $names/$package.k8sVersionMinor=$minor"
	done
	"$go" build -o "$into/bin/" -ldflags "-s -w $flags" helm.sh/helm/v3/cmd/helm
	rm -f "$into"/.built-*
	touch "$stamp"
fi
