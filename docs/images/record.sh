#!/usr/bin/env bash
# Records docs/images/top.svg: an agent on five real UPFs under load, as `slicepilot top` shows it. Needs root and tmux.
#   docs/images/record.sh --bundle FOLDER          or --agent NAME
set -euo pipefail
cd "$(dirname "$0")/../.."

trap 'tmux kill-session -t picture 2>/dev/null || true' EXIT
.venv/bin/slicepilot run "${@:?usage: docs/images/record.sh --bundle FOLDER}" --scenario testbed-contention \
	--mode live --force --seconds 90 --name pic --listen off >/dev/null &
run=$!
until .venv/bin/slicepilot control status --name pic --json 2>/dev/null | grep -q '"offered_mbps": [1-9]'; do
	kill -0 "$run"
	sleep 1
done
sleep 8
tmux new-session -d -s picture -x 92 -y 30 ".venv/bin/slicepilot top --name pic"
sleep 4
tmux capture-pane -e -N -p -t picture | .venv/bin/python docs/images/terminal.py "slicepilot top" docs/images/top.svg
kill -INT "$run"
wait "$run" || true
