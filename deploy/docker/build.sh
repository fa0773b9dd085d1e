#!/usr/bin/env bash
# The image of the agent, from the Dockerfile beside it, with buildah: no daemon, no registry, no network in any stage.
# Packages are Debian's (signed by it) and PyPI's (by the hashes of requirements/agent.txt).
#   build.sh [--tag NAME] [--out FILE]   as root on Debian; FILE is an archive that ctr, podman and docker can load
#   build.sh --context                   fills build/image/context alone, for another builder
# The base is made once, in build/image; wheels stay as long as the pins.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD into=$PWD/build/image tools=$PWD/build/tools tag=localhost/slicepilot-agent:latest out= context_only=

while [[ $# -gt 0 ]]; do
	case $1 in
		--tag) tag=$2; shift 2 ;;
		--out) out=$(realpath -m "$2"); shift 2 ;;
		--context) context_only=yes; shift ;;
		*) echo "build.sh: unknown argument '$1'; accepted: --tag NAME, --out FILE, --context" >&2; exit 2 ;;
	esac
done

# Nothing is done anew for the same sources.
sources=(agents cli cluster configs controller data env node testbed training deploy/docker pyproject.toml
	hatch_build.py requirements/agent.txt README.md)
made=$(find "${sources[@]}" -type f -not -name '*.py[co]' -not -name '*.nb[ic]' -not -name '*.bpf.o' -not -name '*.so' -print0 | sort -z |
	xargs -0 sha256sum | cat - <(echo "$tag") | sha256sum | cut -c1-16)
[[ -n $out && -e $out && -e $out.$made ]] && exit 0

context=$into/context
mkdir -p "$context/wheels" "$into/venv"
cp deploy/docker/Dockerfile "$context/Dockerfile"

# Wheels, for the Python of Debian 12 on this processor.
pins=$(sha256sum <requirements/agent.txt | cut -c1-16)
if [[ ! -e $into/.wheels-$pins ]]; then
	[[ -x $into/venv/bin/pip ]] || python3 -m venv "$into/venv"
	rm -rf "$context/wheels" "$into"/.wheels-*
	"$into/venv/bin/pip" download --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
		--python-version 3.11 --requirement requirements/agent.txt --dest "$context/wheels"
	touch "$into/.wheels-$pins"
fi
cp requirements/agent.txt "$context/requirements.txt"
rm -f "$context"/wheels/slicepilot-*.whl
go=$(testbed/go.sh)
PATH=$(dirname "$go"):$PATH SLICEPILOT_WHEEL=platform .venv/bin/python -m build --wheel --no-isolation \
	--outdir "$context/wheels" . >/dev/null
[[ -z $context_only ]] || exit 0

# buildah and mmdebstrap, unpacked beside the other tools; a library of buildah's that is not there is installed, since
# it starts itself again without our search path.
tests/packages.sh
PATH=$PATH:$tools/usr/bin
if ldd "$(command -v buildah)" | grep -q 'libgpgme.*not found'; then
	apt-get install -y -qq --no-install-recommends libgpgme11 >/dev/null
fi
base=$into/base.tar
if [[ ! -e $base ]]; then
	mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,libbpf1 \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
		bookworm - >"$base.new"
	mv "$base.new" "$base"
fi

# All that buildah keeps is in here, beside no other builder's; it pulls nothing.
export CONTAINERS_REGISTRIES_CONF=$into/registries.conf CONTAINERS_STORAGE_CONF=$into/storage.conf BUILDAH_ISOLATION=chroot
: >"$into/registries.conf"
printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' "$into/store" "$into/run" >"$into/storage.conf"
printf '{"default": [{"type": "insecureAcceptAnything"}]}\n' >"$into/policy.json"
build() { buildah bud --quiet --pull-never --network none --signature-policy "$into/policy.json" "$@" >/dev/null; }
if [[ -z $(buildah images --quiet --filter reference=localhost/slicepilot-base 2>/dev/null) ]]; then
	mkdir -p "$into/base"
	ln -f "$base" "$into/base/base.tar"
	printf 'FROM scratch\nADD base.tar /\nCMD ["/bin/sh"]\n' >"$into/base/Dockerfile"
	build --tag localhost/slicepilot-base "$into/base"
fi
build --build-arg BASE=localhost/slicepilot-base --tag "$tag" "$context"
buildah rmi --prune --force >/dev/null 2>&1 || true
if [[ -n $out ]]; then
	rm -f "$out" "$out".*
	buildah push --quiet --signature-policy "$into/policy.json" "$tag" "docker-archive:$out:$tag"
	touch "$out.$made"
fi
