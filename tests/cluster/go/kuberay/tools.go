//go:build tools

// What tests/cluster/build.sh builds of KubeRay; apart from Kubernetes, whose dependencies have other versions.
package tools

import _ "github.com/ray-project/kuberay/ray-operator"
