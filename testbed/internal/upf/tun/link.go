package tun

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
)

// configure sets the MTU of a device of this namespace, brings it up, and adds addresses and routes.
func configure(name string, mtu int, pools []netip.Prefix) error {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	quietIPv6(name, pools)
	route, err := dialNetlink()
	if err != nil {
		return err
	}
	defer route.close()
	if err := route.up(device.Index, mtu); err != nil {
		return fmt.Errorf("MTU %d: %w", mtu, explain("RTM_NEWLINK", err))
	}
	for _, pool := range pools {
		if pool.Addr() != pool.Masked().Addr() {
			if err := route.addAddress(device.Index, pool.Addr()); err != nil {
				return fmt.Errorf("address %s: %w", pool.Addr(), err)
			}
		}
		if err := route.addRoute(device.Index, pool.Masked()); err != nil {
			return fmt.Errorf("route %s: %w", pool.Masked(), err)
		}
	}
	return nil
}

// quietIPv6 keeps the kernel from talking on the device by itself (router solicitations, multicast listener reports),
// which terminals should not see: no link-local address, and no IPv6 at all without an IPv6 pool. That it may fail
// where IPv6 is not built in is no harm.
func quietIPv6(name string, pools []netip.Prefix) {
	settings := map[string]string{"addr_gen_mode": "1", "router_solicitations": "0", "disable_ipv6": "1"}
	for _, pool := range pools {
		if pool.Addr().Is6() {
			settings["disable_ipv6"] = "0"
		}
	}
	for setting, value := range settings {
		_ = os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, setting), []byte(value), 0)
	}
}
