package verify

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"
)

// listenUDP binds a UDP socket, inside the network namespace of a file such as /run/netns/NAME where one is named. A
// socket stays in the namespace that it was made in; the thread that went there ends with its goroutine.
func listenUDP(namespace string, local netip.AddrPort) (*net.UDPConn, error) {
	if namespace == "" {
		return net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	}
	type result struct {
		conn *net.UDPConn
		err  error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if err := enter(namespace); err != nil {
			made <- result{nil, fmt.Errorf("network namespace %s: %w", namespace, err)}
			return
		}
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
		made <- result{conn, err}
	}()
	r := <-made
	return r.conn, r.err
}

func enter(namespace string) error {
	fd, err := unix.Open(namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWNET)
}
