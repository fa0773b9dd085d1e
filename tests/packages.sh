#!/usr/bin/env bash
# Programs that only tests need: Prometheus with promtool, Docker with Compose, network plugins of pods, what images are
# made with. On Debian and Ubuntu packages are downloaded and unpacked into build/tools; nothing is
# installed, no daemon starts, and root is not needed. Elsewhere it names what is missing and fails. Tests look in
# build/tools first, then on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/build/tools

# Debian 12's Compose is a Python program; what it imports.
compose=(attr certifi chardet charset-normalizer distro docker dockerpty docopt dotenv idna jsonschema pyrsistent
	requests six texttable urllib3 websocket yaml)
# file below build/tools -> Debian packages that bring it
declare -A packages=(
	[usr/bin/promtool]="prometheus"
	[usr/bin/prometheus]="prometheus"
	[usr/sbin/dockerd]="docker.io containerd runc"
	[usr/lib/cni/host-local]="containernetworking-plugins"
	[usr/bin/buildah]="buildah libsubid4"
	[usr/bin/mmdebstrap]="mmdebstrap"
	[usr/bin/docker-compose]="docker-compose ${compose[*]/#/python3-}"
)

updated=
staging=
trap 'rm -rf "$staging"' EXIT

unpack() { # packages into build/tools
	local package folder
	rm -rf "$staging"
	staging=$(mktemp -d "$tools/.download.XXXXXX")
	cd "$staging"
	# The lists may be missing or old; refreshing them takes root.
	if ! apt-get download -qq "$@" 2>/dev/null; then
		rm -f ./*.deb
		if [[ -z $updated && $(id -u) -eq 0 ]]; then
			apt-get update -qq
			updated=yes
		fi
		if ! apt-get download -qq "$@" 2>/dev/null; then
			echo "apt-get cannot download $*: run apt-get update as root, or install them" >&2
			return 1
		fi
	fi
	mkdir root "$tools/usr" 2>/dev/null || true
	for package in ./*.deb; do
		dpkg-deb --extract "$package" root || return 1
	done
	# A package may hold programs only.
	for folder in bin sbin lib; do
		if [[ -d root/usr/$folder ]]; then
			cp -a "root/usr/$folder" "$tools/usr/" || return 1
		fi
	done
}

failed=
for need in "${!packages[@]}"; do
	[[ -x $tools/$need ]] || PATH=$PATH:/usr/sbin command -v "${need##*/}" >/dev/null && continue
	if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
		echo "missing for tests (Debian's names): ${packages[$need]}; install them and run make again" >&2
		failed=yes
		continue
	fi
	mkdir -p "$tools"
	echo "unpacking ${packages[$need]} into build/tools"
	read -ra names <<<"${packages[$need]}"
	# One that cannot be had does not take the others with it.
	unpack "${names[@]}" || failed=yes
done
[[ -z $failed ]]
