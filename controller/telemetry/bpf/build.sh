#!/bin/sh
# Compiles the BPF programs of the controller, each object beside its source, or into the folder that an argument names.
# CLANG names another compiler.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
into=${1:-$here}
clang=${CLANG:-clang}

fail() {
	echo "bpf: $1 (Debian and Ubuntu: apt install clang libbpf-dev)" >&2
	exit 1
}

command -v "$clang" >/dev/null 2>&1 || fail "no $clang on PATH"
# The kernel's interface headers live in a folder of the machine's own on Debian and its kin.
set -- -O2 -g -target bpf -mcpu=v3 -Wall -Werror -idirafter "/usr/include/$(uname -m)-linux-gnu"
for header in linux/bpf.h bpf/bpf_helpers.h bpf/bpf_core_read.h; do
	echo "#include <$header>" | "$clang" "$@" -fsyntax-only -include linux/types.h -x c - 2>/dev/null || fail "no header $header"
done

# The same object wherever the sources lie, and from wherever it is compiled.
set -- "$@" "-ffile-prefix-map=$here=." -fdebug-compilation-dir=.
for source in "$here"/*.bpf.c; do
	object=$into/$(basename "${source%.c}").o
	# Written beside and renamed: who loads it meanwhile sees the old or the new one.
	"$clang" "$@" -c "$source" -o "$object.new"
	mv "$object.new" "$object"
done
