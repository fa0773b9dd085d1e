#!/usr/bin/env bash
# Programs that only tests need: Prometheus with promtool. On Debian and Ubuntu the package is downloaded and unpacked into
# build/tools; nothing is installed, no daemon starts, and root is not needed. Elsewhere it names what is missing and
# fails. Tests look in build/tools first, then on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/build/tools

# file below build/tools -> Debian packages that bring it
declare -A packages=(
	[usr/bin/promtool]="prometheus"
	[usr/bin/prometheus]="prometheus"
)

missing=()
for need in "${!packages[@]}"; do
	[[ -x $tools/$need ]] || command -v "${need##*/}" >/dev/null || missing+=("${packages[$need]}")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0
read -ra missing <<<"$(tr ' ' '\n' <<<"${missing[*]}" | sort -u | tr '\n' ' ')"

if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
	echo "missing for tests (Debian's names): ${missing[*]}; install them and run make again" >&2
	exit 1
fi
mkdir -p "$tools"
staging=$(mktemp -d "$tools/.download.XXXXXX")
trap 'rm -rf "$staging"' EXIT
echo "unpacking ${missing[*]} into build/tools"
cd "$staging"
# The lists may be missing or old; refreshing them takes root.
if ! apt-get download -qq "${missing[@]}" 2>/dev/null; then
	rm -f ./*.deb
	if [[ $(id -u) -ne 0 ]]; then
		echo "apt-get cannot download ${missing[*]}: run apt-get update as root, or install them" >&2
		exit 1
	fi
	apt-get update -qq
	apt-get download -qq "${missing[@]}" 2>/dev/null
fi
mkdir root
for package in ./*.deb; do
	dpkg-deb --extract "$package" root
done
mkdir -p "$tools/usr"
# A package may hold programs only.
for folder in bin lib; do
	if [[ -d root/usr/$folder ]]; then
		cp -a "root/usr/$folder" "$tools/usr/"
	fi
done
