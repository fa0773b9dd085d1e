#!/usr/bin/env bash
# Runs the tests, all parts even when one has failed, and says what they took: tests/run.sh quick|all [PYTEST ARGUMENTS].
# Four processes, which often wait, share what does not measure real time, one thread each; the rest runs alone.
set -uo pipefail
cd "$(dirname "$0")/.."
kind=$1
shift
status=0
export OMP_NUM_THREADS=1
# Tests that are another user for a while read files that other tests' code has made.
umask 022

# Some tests may be of one kind alone: then pytest finds none of the other, which is its exit status 5.
tests() {
	.venv/bin/pytest -q --ignore=tests/cluster --ignore=tests/charts "${arguments[@]}" "$@"
	local code=$?
	[[ $code -eq 0 || ($code -eq 5 && ${#arguments[@]} -gt 0) ]] || status=$code
}
arguments=("$@")

# Beside each other: Go's compiler, and the compiler of kernels, which each process of pytest would otherwise call again.
.venv/bin/python -m tests.kernels simulator &
simulator=$!
.venv/bin/python -m tests.kernels guard &
guard=$!
go=$(testbed/go.sh) && (cd testbed && "$go" vet ./... && "$go" test ./...) || status=$?
wait "$simulator" || status=$?
wait "$guard" || status=$?

# A clone that a closed umask has made: tests that are another user for a while read it through a mount of its own
# (tests/reachable.py), and no user can enter it from outside.
[[ $(stat -c %A .) == *x ]] || find . -mindepth 1 -maxdepth 1 -exec chmod -R go+rX {} +

if [[ $kind == all ]]; then
	tests/packages.sh || true
	testbed/fuzz.sh "${FUZZ_TIME:-2s}" || status=$?
	tests -n 4 --dist loadfile --no-loadscope-reorder -m "not realtime"
	tests -m realtime
else
	tests -n 4 --dist loadfile --no-loadscope-reorder -m "not realtime and not slow"
	tests -m "realtime and not slow"
fi

# The second line of `times` is of children, as 1m2.345s; in a subshell it would be of that.
spent=$(mktemp)
times >"$spent"
read -r user system < <(tail -1 "$spent")
rm -f "$spent"
echo "tests: ${SECONDS} s, user ${user} and system ${system} of CPU time, exit status $status"
exit "$status"
