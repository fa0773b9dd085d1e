#!/usr/bin/env bash
# Builds eUPF, a user plane that forwards in XDP and is nobody's of ours, into build/third-party, and prints the
# program's path. A test fixture calls it; what is built already stays. Everything comes from the Go module proxy, held
# to the sum below and to the sums that the module itself has of what it needs.
set -euo pipefail
cd "$(dirname "$0")/../.."
module=github.com/edgecomllc/eupf version=v0.7.1
sum=h1:feSppwieIhmF33QYFCPiHHTHHtQaEDo0cih7+ZmAb7c=
folder=$PWD/build/third-party/eupf-$version
program=$folder/eupf

if [[ ! -x $program ]]; then
	mkdir -p "$folder"
	exec 9>"$folder/lock"
	flock 9
fi
if [[ ! -x $program ]]; then
	go=$(testbed/go.sh)
	testbed/system.sh >&2
	export GOTOOLCHAIN=local GOFLAGS=-buildvcs=false PATH=$(dirname "$go"):$PATH
	work=$(mktemp -d "$folder/work.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	cd "$work"
	# Outside of any module, so that nothing but the version decides.
	got=$("$go" mod download -json "$module@$version")
	entry() { sed -n "s/^\t\"$1\": \"\(.*\)\",\?$/\1/p" <<<"$got"; }
	if [[ $(entry Sum) != "$sum" ]]; then
		echo "$module $version has the sum $(entry Sum), not $sum" >&2
		exit 1
	fi
	cp -r "$(entry Dir)" source
	chmod -R u+w source
	cd source
	# Its description of its REST interface, which its own build generates, is not needed.
	mkdir -p cmd/docs && echo 'package docs' >cmd/docs/docs.go
	# Root of a container may not raise its limit of locked memory (CAP_SYS_RESOURCE), and for BPF needs none since Linux
	# 5.11 (commit "bpf: Eliminate rlimit-based memory accounting"): eUPF ends there, this one goes on.
	sed -i "s/log.Fatal().Msgf(\"Can't increase/log.Warn().Msgf(\"Can't increase/" cmd/main.go
	grep -q "log.Warn().Msgf(\"Can't increase" cmd/main.go
	# The macro keeps glibc's headers from wanting those of 32-bit machines.
	(
		cd cmd/ebpf
		GOPACKAGE=ebpf "$go" run github.com/cilium/ebpf/cmd/bpf2go -no-strip -target bpf IpEntrypoint \
			xdp/n3n6_entrypoint.c -- -I. -O2 -g -w "-D__$(uname -m)__" -idirafter "/usr/include/$(uname -m)-linux-gnu"
	) >&2
	CGO_ENABLED=0 "$go" build -trimpath -o "$work/eupf" ./cmd
	# Written beside and renamed: whoever looks meanwhile sees all of it or nothing.
	mv "$work/eupf" "$program"
fi
echo "$program"
