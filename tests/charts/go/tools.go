//go:build tools

// What tests/charts/build.sh builds; `go mod tidy` keeps go.mod and go.sum to what these need.
package tools

import (
	_ "helm.sh/helm/v3/cmd/helm"
)
