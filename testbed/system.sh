#!/usr/bin/env bash
# System packages for the testbed, the probe and the loop's library. Installs what is missing where it runs as root on Debian or Ubuntu;
# elsewhere it names what is missing and fails.
set -euo pipefail

# command or file that must be there -> Debian package that has it
declare -A packages=(
	[clang]=clang
	[cc]=gcc
	[/usr/include/stdio.h]=libc6-dev
	[tc]=iproute2
	[nsenter]=util-linux
	[/usr/include/bpf/bpf_helpers.h]=libbpf-dev
	[/usr/include/linux/bpf.h]=linux-libc-dev
)
# Of a distribution's own Python; others bring it.
python=$(cd "$(dirname "$0")/.." && .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null || true)
[[ $python == /usr/include/* ]] && packages[$python/Python.h]=lib${python##*/}-dev

missing=()
for need in "${!packages[@]}"; do
	if [[ $need == /* ]]; then
		[[ -e $need ]] || missing+=("${packages[$need]}")
	else
		PATH=$PATH:/usr/sbin:/sbin command -v "$need" >/dev/null || missing+=("${packages[$need]}")
	fi
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
	echo "missing system packages (Debian's names): ${missing[*]}; install them and run make again" >&2
	exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
