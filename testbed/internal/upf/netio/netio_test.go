package netio

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, address string, receiveBuffer int) *Socket {
	t.Helper()
	s, err := Listen(netip.MustParseAddrPort(address), receiveBuffer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestBatches(t *testing.T) {
	for _, host := range []string{"127.0.0.1:0", "[::1]:0"} {
		from, to := open(t, host, 0), open(t, host, 0)
		const count, size = 8, 100
		tx, rx := NewTransmitter(from, count), NewReceiver(to, count, size)
		if n, err := rx.Receive(); n != 0 || err != unix.EAGAIN {
			t.Errorf("%s: %d datagrams, %v; want none yet", host, n, err)
		}
		address := SockaddrOf(to.Local)
		for i := 0; !tx.Full(); i++ {
			tx.Stage([]byte(fmt.Sprint("packet ", i)), &address)
		}
		if refused := tx.Flush(); refused != 0 || tx.Staged() != 0 {
			t.Fatalf("%s: %d refused, %d staged", host, refused, tx.Staged())
		}
		n, err := rx.Receive()
		if n != count || err != nil {
			t.Fatalf("%s: %d datagrams, %v", host, n, err)
		}
		for i := range n {
			b, whole := rx.Datagram(i)
			if string(b) != fmt.Sprint("packet ", i) || !whole || rx.Sender(i).AddrPort() != from.Local {
				t.Errorf("%s: datagram %d is %q from %s (whole: %v)", host, i, b, rx.Sender(i).AddrPort(), whole)
			}
		}
		back := *rx.Sender(0)
		if err := to.SendTo(bytes.Repeat([]byte{7}, size), &back); err != nil {
			t.Fatal(err)
		}
		answers := NewReceiver(from, 1, size)
		n, err = answers.Receive()
		if b, _ := answers.Datagram(0); n != 1 || err != nil || len(b) != size || answers.Sender(0).AddrPort() != to.Local {
			t.Errorf("%s: %d octets from %s, %v", host, len(b), answers.Sender(0).AddrPort(), err)
		}
	}
}

func TestDatagramThatIsTooLong(t *testing.T) {
	from, to := open(t, "127.0.0.1:0", 0), open(t, "127.0.0.1:0", 0)
	rx := NewReceiver(to, 2, 10)
	address := SockaddrOf(to.Local)
	for _, size := range []int{11, 10} {
		if err := from.SendTo(make([]byte, size), &address); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := rx.Receive(); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if _, whole := rx.Datagram(0); whole {
		t.Error("11 octets in a buffer of 10 pass for whole")
	}
	if b, whole := rx.Datagram(1); !whole || len(b) != 10 {
		t.Error("10 octets in a buffer of 10 do not")
	}
}

// One datagram that cannot be sent does not keep those behind it.
func TestFlushGoesOnBehindAnError(t *testing.T) {
	from, to := open(t, "127.0.0.1:0", 0), open(t, "127.0.0.1:0", 0)
	tx := NewTransmitter(from, 3)
	good, bad := SockaddrOf(to.Local), SockaddrOf(netip.MustParseAddrPort("[::1]:9"))
	tx.Stage([]byte("first"), &good)
	tx.Stage([]byte("second"), &bad)
	tx.Stage([]byte("third"), &good)
	if refused := tx.Flush(); refused != 1 {
		t.Errorf("%d refused, want 1", refused)
	}
	rx := NewReceiver(to, 3, 10)
	if n, err := rx.Receive(); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if b, _ := rx.Datagram(1); string(b) != "third" {
		t.Errorf("%q", b)
	}
}

func TestReceiveBufferAndDrops(t *testing.T) {
	const size = 16384
	from, to := open(t, "127.0.0.1:0", 0), open(t, "127.0.0.1:0", size)
	if got := to.ReceiveBuffer(); got != size {
		t.Errorf("receive buffer of %d, want %d", got, size)
	}
	address := SockaddrOf(to.Local)
	const sent = 100
	for range sent {
		if err := from.SendTo(make([]byte, 1400), &address); err != nil {
			t.Fatal(err)
		}
	}
	received := 0
	rx := NewReceiver(to, sent, 1400)
	for n, err := rx.Receive(); err == nil; n, err = rx.Receive() {
		received += n
	}
	if got := to.Drops(); received == 0 || got == 0 || int(got)+received != sent {
		t.Errorf("%d received and %d dropped of %d", received, got, sent)
	}
}

func TestWait(t *testing.T) {
	from, to := open(t, "127.0.0.1:0", 0), open(t, "127.0.0.1:0", 0)
	waker, err := NewWaker()
	if err != nil {
		t.Fatal(err)
	}
	defer waker.Close()
	waker.Wake() // before the wait: not lost
	if err := waker.Wait(to.FD); err != nil {
		t.Fatal(err)
	}
	address := SockaddrOf(to.Local)
	for name, wake := range map[string]func(){
		"a datagram": func() { _ = from.SendTo([]byte{1}, &address) }, "the waker": waker.Wake,
	} {
		var woken sync.WaitGroup
		woken.Add(1)
		start := time.Now()
		go func() {
			defer woken.Done()
			if err := waker.Wait(to.FD); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(20 * time.Millisecond)
		wake()
		woken.Wait()
		if waited := time.Since(start); waited < 20*time.Millisecond {
			t.Errorf("%s: waited %s only", name, waited)
		}
		_, _ = NewReceiver(to, 1, 1).Receive()
	}
}

func TestListenOnAnAddressThatIsNotHere(t *testing.T) {
	if _, err := Listen(netip.MustParseAddrPort("192.0.2.1:2152"), 0); err == nil || err.Error() != "bind 192.0.2.1:2152: cannot assign requested address" {
		t.Errorf("got %v", err)
	}
}
