#!/usr/bin/env bash
# install.sh UV FILE: install a set of pinned packages into .venv. TORCH says which build of PyTorch comes with it:
#   auto    (default) the CPU's on machines without a GPU, if its index answers; else as locked
#   cpu     the CPU's; fails if its index does not answer
#   locked  the build of the file, which brings CUDA
# The CPU's build has another index and so no hash in the file: its version is pinned, its bytes are not.
set -euo pipefail
uv=$1 file=$2 choice=${TORCH:-auto}
torch=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' "$file")

case $choice in
auto | cpu | locked) ;;
*) echo "TORCH = '$choice'; expected auto, cpu, locked" >&2 && exit 2 ;;
esac
if [[ -n $torch && $choice == auto ]]; then
	choice=cpu
	if compgen -G "/dev/nvidia[0-9]*" >/dev/null; then
		choice=locked
	# --reinstall: or a PyTorch that is installed already would do, and its index would not be asked.
	elif ! "$uv" pip install --python .venv --quiet --dry-run --reinstall --no-deps --torch-backend cpu "$torch" 2>/dev/null; then
		echo "PyTorch's index of CPU builds does not answer: installing the build with CUDA (5 GB more)" >&2
		choice=locked
	fi
fi
if [[ -z $torch || $choice == locked ]]; then
	exec "$uv" pip sync --python .venv --require-hashes "$file"
fi
echo "no GPU: installing PyTorch without CUDA; for the build with CUDA: make clean && make setup TORCH=locked" >&2
rest=$(mktemp)
trap 'rm -f "$rest"' EXIT
# A package is a line that begins with its name, and the indented lines of its hashes.
awk '/^[^ #]/ { skip = /^(torch|triton|nvidia-[a-z0-9-]*|cuda-[a-z-]*)==/ } !skip' "$file" >"$rest"
"$uv" pip sync --python .venv --require-hashes "$rest"
"$uv" pip install --python .venv --no-deps --torch-backend cpu "$torch"
