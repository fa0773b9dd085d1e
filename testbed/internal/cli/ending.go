package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Until ends with SIGTERM, SIGINT and, where the duration is above 0, after that.
func Until(duration time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if duration == 0 {
		return ctx, stop
	}
	timed, cancel := context.WithTimeout(ctx, duration)
	return timed, func() {
		cancel()
		stop()
	}
}

// AwaitLine waits for the first line on standard input, or until the end, which is no error.
func AwaitLine(ctx context.Context) error {
	line := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(os.Stdin).ReadString('\n')
		line <- err
	}()
	select {
	case <-ctx.Done():
	case err := <-line:
		if err != nil {
			return fmt.Errorf("standard input ended before the line to start at: %w", err)
		}
	}
	return nil
}
