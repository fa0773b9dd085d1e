#!/usr/bin/env bash
# What a Kubernetes cluster on this machine takes, into build/cluster: etcd and Kubernetes from the Go module proxy, by
# the versions and sums of go/go.mod and go/go.sum; containerd, runc and network plugins as Debian packages, unpacked;
# KubeRay's operator by those of go/kuberay, with its resource definitions, and what Ray needs to take jobs from it.
# Nothing is installed. The first time takes some ten minutes on two cores; what has been built stays.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD/tests/cluster into=$PWD/build/cluster
go=$(testbed/go.sh)
version=$(awk '$1 == "k8s.io/kubernetes" || $2 == "k8s.io/kubernetes" {print $NF; exit}' "$here/go/go.mod")
[[ $version == v* ]] || { echo "go/go.mod: no version of Kubernetes" >&2; exit 1; }
pins=("$here"/go/{,kuberay/}go.{mod,sum} requirements/kuberay.txt)
stamp=$into/.built-$(cat "${pins[@]}" "$here/build.sh" | sha256sum | cut -c1-16)

if [[ ! -e $stamp ]]; then
	mkdir -p "$into/bin"
	commands=(kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet)
	names=k8s.io/component-base/version
	minor=${version#v1.}
	echo "building Kubernetes $version into build/cluster; the first time that takes minutes"
	cd "$here/go"
	export CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false -trimpath"
	"$go" build -o "$into/bin/" -ldflags "-s -w -X $names.gitVersion=$version -X $names.gitMajor=1 -X $names.gitMinor=${minor%%.*}" \
		"${commands[@]/#/k8s.io/kubernetes/cmd/}"
	"$go" build -o "$into/bin/etcd" -ldflags "-s -w" go.etcd.io/etcd/server/v3
	"$go" build -o "$into/bin/pause" -ldflags "-s -w" ./pause
	cd "$here/go/kuberay"
	kuberay=github.com/ray-project/kuberay/ray-operator
	"$go" build -o "$into/bin/ray-operator" -ldflags "-s -w" "$kuberay"
	mkdir -p "$into/crds"
	install -m 644 "$("$go" list -m -f '{{.Dir}}' "$kuberay")"/config/crd/bases/*.yaml "$into/crds/"
	cd "$here/../.."
	uv=$(command -v uv || echo .uv-bootstrap/bin/uv)
	rm -rf "$into/ray"
	"$uv" pip install --quiet --compile-bytecode --python .venv/bin/python --target "$into/ray" --require-hashes \
		-r requirements/kuberay.txt
	rm -f "$into"/.built-*
	touch "$stamp"
fi
