// Package tun makes the TUN device through which a UPF exchanges packets with the data network.
package tun

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Limits of a device's MTU: the smallest that IPv4 allows (RFC 791), the largest a packet can fill.
const (
	MinMTU = 68
	MaxMTU = 65535
)

const clone = "/dev/net/tun"

// Device is an open TUN device. It disappears when it is closed.
type Device struct {
	FD   int // non-blocking; one packet for each read and write, without any header
	Name string
}

// Open makes a TUN device, sets its MTU, brings it up and routes the pools to it.
//
// A pool with host bits (10.60.0.254/24) also gives the device that address; one without (10.60.0.0/24) is routed only,
// which leaves every address to the terminals.
func Open(name string, mtu int, pools []netip.Prefix) (*Device, error) {
	fd, err := unix.Open(clone, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", clone, err)
	}
	d := &Device{FD: fd, Name: name}
	if err := d.setUp(mtu, pools); err != nil {
		d.Close()
		return nil, fmt.Errorf("TUN device %s: %w", name, err)
	}
	return d, nil
}

// Close closes and so removes the device.
func (d *Device) Close() error { return unix.Close(d.FD) }

func (d *Device) setUp(mtu int, pools []netip.Prefix) error {
	request, err := unix.NewIfreq(d.Name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
	if err := unix.IoctlIfreq(d.FD, unix.TUNSETIFF, request); err != nil {
		return explain("TUNSETIFF", err)
	}
	return configure(d.Name, mtu, pools)
}

// explain adds what to do to errors that have one common cause.
func explain(call string, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: it exists already", os.NewSyscallError(call, err))
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: CAP_NET_ADMIN is needed", os.NewSyscallError(call, err))
	}
	return os.NewSyscallError(call, err)
}
