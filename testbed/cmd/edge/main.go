// Command edge is the edge application of the testbed: it turns spare CPU into useful work and counts it.
//
// One unit of work is the SHA-256 of a block of 64 KiB, as a video analytics or storage service would compute per
// object. It never sleeps, so what it gets done is the CPU that its cgroup is given.
package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/cli"
)

const (
	blockBytes  = 64 << 10
	counterSize = 8
)

const help = `edge hashes blocks of 64 KiB until SIGTERM, then prints how many.

  edge [--workers N] [--counter FILE]
`

func main() { cli.Exit("edge", run(os.Args[1:])) }

func run(args []string) error {
	flags := flag.NewFlagSet("edge", flag.ContinueOnError)
	workers := flags.Int("workers", runtime.NumCPU(), "threads that work")
	path := flags.String("counter", "", "`FILE` whose first 8 bytes count finished blocks (native byte order, mapped); none if empty")
	if err := cli.Parse(flags, args, help); err != nil {
		return err
	}
	if *workers < 1 {
		return cli.Usagef("--workers: %d; expected at least one", *workers)
	}
	counter, err := mapCounter(*path)
	if err != nil {
		return err
	}
	ctx, stop := cli.Until(0)
	defer stop()
	var group sync.WaitGroup
	for range *workers {
		group.Add(1)
		go func() {
			defer group.Done()
			work(ctx, counter)
		}()
	}
	lines := cli.NewLines(os.Stdout)
	if err := lines.Write(map[string]any{"event": "ready", "pid": os.Getpid(), "workers": *workers}); err != nil {
		return err
	}
	group.Wait()
	return lines.Write(map[string]any{"event": "stopped", "blocks": counter.Load()})
}

// work hashes one block after the other; each result feeds the next, so that none can be left out.
func work(ctx context.Context, counter *atomic.Uint64) {
	block := make([]byte, blockBytes)
	for ctx.Err() == nil {
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
