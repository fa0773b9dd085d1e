package tun

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// link configures a network device of the namespace it is made in.
type link struct {
	name    string
	index   int
	control int // a socket for the ioctls of netdevice(7)
	netlink *netlink
}

func newLink(name string) (*link, error) {
	control, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	l := &link{name: name, control: control}
	if l.index, err = l.readIndex(); err != nil {
		unix.Close(control)
		return nil, err
	}
	if l.netlink, err = dialNetlink(); err != nil {
		unix.Close(control)
		return nil, err
	}
	return l, nil
}

func (l *link) close() {
	unix.Close(l.control)
	l.netlink.close()
}

func (l *link) readIndex() (int, error) {
	request, err := unix.NewIfreq(l.name)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(l.control, unix.SIOCGIFINDEX, request); err != nil {
		return 0, os.NewSyscallError("SIOCGIFINDEX", err)
	}
	return int(request.Uint32()), nil
}

// configure sets the MTU, brings the device up, and adds addresses and routes.
func (l *link) configure(mtu int, pools []netip.Prefix) error {
	l.quietIPv6(pools)
	if err := l.setMTU(mtu); err != nil {
		return err
	}
	if err := l.up(); err != nil {
		return err
	}
	for _, pool := range pools {
		if pool.Addr() != pool.Masked().Addr() {
			if err := l.netlink.addAddress(l.index, pool.Addr()); err != nil {
				return fmt.Errorf("address %s: %w", pool.Addr(), err)
			}
		}
		if err := l.netlink.addRoute(l.index, pool.Masked()); err != nil {
			return fmt.Errorf("route %s: %w", pool.Masked(), err)
		}
	}
	return nil
}

// quietIPv6 keeps the kernel from talking on the device by itself (router solicitations, multicast listener reports),
// which terminals should not see: no link-local address, and no IPv6 at all without an IPv6 pool. That it may fail
// where IPv6 is not built in is no harm.
func (l *link) quietIPv6(pools []netip.Prefix) {
	settings := map[string]string{"addr_gen_mode": "1", "router_solicitations": "0", "disable_ipv6": "1"}
	for _, pool := range pools {
		if pool.Addr().Is6() {
			settings["disable_ipv6"] = "0"
		}
	}
	for name, value := range settings {
		_ = os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", l.name, name), []byte(value), 0)
	}
}

func (l *link) setMTU(mtu int) error {
	request, err := unix.NewIfreq(l.name)
	if err != nil {
		return err
	}
	request.SetUint32(uint32(mtu))
	if err := unix.IoctlIfreq(l.control, unix.SIOCSIFMTU, request); err != nil {
		return fmt.Errorf("MTU %d: %w", mtu, os.NewSyscallError("SIOCSIFMTU", err))
	}
	return nil
}

func (l *link) up() error {
	request, err := unix.NewIfreq(l.name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(l.control, unix.SIOCGIFFLAGS, request); err != nil {
		return os.NewSyscallError("SIOCGIFFLAGS", err)
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(l.control, unix.SIOCSIFFLAGS, request); err != nil {
		return explain("SIOCSIFFLAGS", err)
	}
	return nil
}
