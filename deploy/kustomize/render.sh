#!/usr/bin/env bash
# Writes slicepilot.yaml with helm: the chart's objects with its own values, and the namespace.
set -euo pipefail
cd "$(dirname "$0")"
helm=../../build/charts/bin/helm
[[ -x $helm ]] || helm=helm
{
	echo "# Rendered from deploy/helm/slicepilot by render.sh: change the chart instead."
	"$helm" template slicepilot ../helm/slicepilot --namespace slicepilot-system --set namespace.create=true
} >slicepilot.yaml
