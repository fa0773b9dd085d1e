#!/usr/bin/env bash
# Fuzzes every parser of the user plane for some time each, one after the other: testbed/fuzz.sh [TIME], 2s by default,
# 30m for a night. What is found anew goes into Go's cache; an input that fails is written to testdata/fuzz, to be kept.
set -euo pipefail
cd "$(dirname "$0")"
# Before 1.27 the time's own end is now and then taken for a failure, "context deadline exceeded" (golang/go#75804).
go=$(./go.sh 1.27)
time=${1:-2s}
grep -rhoE --include='*_test.go' '^func Fuzz\w+' internal | sort -u | cut -d' ' -f2 | while read -r function; do
	package=$(dirname "$(grep -rlE --include='*_test.go' "^func $function\(" internal)")
	"$go" test "./$package" -run '^$' -fuzz "^$function\$" -fuzztime "$time" -parallel 2 </dev/null
done
