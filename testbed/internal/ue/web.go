package ue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	blockBytes = 64 << 10
	maxAnswer  = 1 << 40
)

type connection struct{}

// Serve answers GET /OCTETS with so many octets, at ?rate=BITS a second at most, until the context ends.
//
// The rate is the kernel's pacing of the connection (socket(7), SO_MAX_PACING_RATE).
func Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           http.HandlerFunc(answer),
		ReadHeaderTimeout: 10 * time.Second,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connection{}, c)
		},
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func answer(w http.ResponseWriter, r *http.Request) {
	octets, err := strconv.ParseInt(r.URL.Path[1:], 10, 64)
	if r.Method != http.MethodGet || err != nil || octets < 0 || octets > maxAnswer {
		http.Error(w, "expected GET /OCTETS", http.StatusBadRequest)
		return
	}
	if text := r.URL.Query().Get("rate"); text != "" {
		rate, err := strconv.ParseUint(text, 10, 63)
		if err != nil || rate < 8 {
			http.Error(w, "rate: expected bits a second", http.StatusBadRequest)
			return
		}
		if err := pace(r, rate/8); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	w.Header().Set("Content-Length", strconv.FormatInt(octets, 10))
	block := make([]byte, blockBytes)
	for octets > 0 {
		n, err := w.Write(block[:min(octets, blockBytes)])
		if err != nil {
			return
		}
		octets -= int64(n)
	}
}

// pace bounds what a request's connection sends, in octets a second.
func pace(r *http.Request, rate uint64) error {
	c, ok := r.Context().Value(connection{}).(*net.TCPConn)
	if !ok {
		return errors.New("not a TCP connection")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Control(func(fd uintptr) {
		failure = unix.SetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate)
	})
	return errors.Join(err, failure)
}

// User asks a server for octets by HTTP again and again, on a new connection each time, as curl in a loop does.
type User struct {
	URL    string
	From   netip.Addr
	Device string // by which packets leave, whatever the routes are
	Pause  time.Duration

	answers, octets, failures atomic.Uint64
	mu                        sync.Mutex
	failure                   string
}

// Count is what a user has had so far.
type Count struct {
	Answers  uint64 `json:"answers"`
	Octets   uint64 `json:"octets"`
	Failures uint64 `json:"failures"`
	Failure  string `json:"failure,omitempty"` // the last
}

// Run asks until the context ends.
func (u *User) Run(ctx context.Context) {
	dialer := &net.Dialer{
		LocalAddr: &net.TCPAddr{IP: u.From.AsSlice()},
		Timeout:   10 * time.Second,
		Control: func(_, _ string, raw syscall.RawConn) error {
			var failure error
			err := raw.Control(func(fd uintptr) { failure = unix.BindToDevice(int(fd), u.Device) })
			return errors.Join(err, failure)
		},
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	for ctx.Err() == nil {
		if err := u.ask(ctx, client); err != nil && ctx.Err() == nil {
			u.failures.Add(1)
			u.mu.Lock()
			u.failure = err.Error()
			u.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(u.Pause):
		}
	}
}

func (u *User) ask(ctx context.Context, client *http.Client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.URL, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", u.URL, response.Status)
	}
	n, err := io.Copy(io.Discard, response.Body)
	u.octets.Add(uint64(n))
	if err == nil {
		u.answers.Add(1)
	}
	return err
}

// Count says what the user has had so far.
func (u *User) Count() Count {
	u.mu.Lock()
	defer u.mu.Unlock()
	return Count{u.answers.Load(), u.octets.Load(), u.failures.Load(), u.failure}
}
