// Command edge is the edge application of the testbed: it turns spare CPU into useful work and counts it.
//
// One unit of work is the SHA-256 of a block of 64 KiB, as a video analytics or storage service would compute per
// object. It never sleeps, so what it gets done is the CPU that its cgroup is given.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	blockBytes  = 64 << 10
	counterSize = 8
)

func main() {
	workers := flag.Int("workers", runtime.NumCPU(), "threads that work")
	path := flag.String("counter", "", "file whose first 8 bytes count finished blocks (native byte order, mapped); none if empty")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "Usage: edge [--workers N] [--counter FILE]\n\nHashes blocks of 64 KiB until SIGTERM, then prints how many.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *workers < 1 || flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "edge: workers = %d, %d arguments: expected at least one worker, no arguments\n", *workers, flag.NArg())
		os.Exit(2)
	}
	if err := run(*workers, *path); err != nil {
		fmt.Fprintf(os.Stderr, "edge: %v\n", err)
		os.Exit(1)
	}
}

func run(workers int, path string) error {
	counter, err := mapCounter(path)
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	var done atomic.Bool
	var group sync.WaitGroup
	for range workers {
		group.Add(1)
		go func() {
			defer group.Done()
			work(counter, &done)
		}()
	}
	if err := say(map[string]any{"event": "ready", "pid": os.Getpid(), "workers": workers}); err != nil {
		return err
	}
	<-stop
	done.Store(true)
	group.Wait()
	return say(map[string]any{"event": "stopped", "blocks": counter.Load()})
}

// work hashes one block after the other; each result feeds the next, so that none can be left out.
func work(counter *atomic.Uint64, done *atomic.Bool) {
	block := make([]byte, blockBytes)
	for !done.Load() {
		sum := sha256.Sum256(block)
		copy(block, sum[:])
		counter.Add(1)
	}
}

// mapCounter gives the counter in a file's first bytes, so that a reader needs no system call, or one in memory.
func mapCounter(path string) (*atomic.Uint64, error) {
	if path == "" {
		return new(atomic.Uint64), nil
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := file.Truncate(counterSize); err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(int(file.Fd()), 0, counterSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", path, err)
	}
	return (*atomic.Uint64)(unsafe.Pointer(&memory[0])), nil
}

func say(message map[string]any) error {
	return json.NewEncoder(os.Stdout).Encode(message)
}
