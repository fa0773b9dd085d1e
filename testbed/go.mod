module slicepilot/userplane

go 1.22

require (
	github.com/wmnsk/go-gtp v0.8.11
	github.com/wmnsk/go-pfcp v0.0.24
	golang.org/x/sys v0.26.0
)
