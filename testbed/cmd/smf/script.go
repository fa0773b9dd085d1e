package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"slicepilot/userplane/internal/cli"
)

// maxLine bounds a line of a script.
const maxLine = 1 << 20

// openScript opens a script; nil when there is none.
func openScript(name string) (io.Reader, error) {
	switch name {
	case "":
		return nil, nil
	case "-":
		return os.Stdin, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, cli.Usagef("--script: %v", err)
	}
	return file, nil
}

// runScript executes commands until quit, the end of the script or of the context.
func (s *smf) runScript(ctx context.Context, script io.Reader) error {
	lines, failure := make(chan []byte), make(chan error, 1)
	go func() { failure <- readLines(ctx, script, lines) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failure:
			return err
		case line := <-lines:
			var c command
			if err := cli.DecodeStrict("command", line, &c); err != nil {
				s.out.answer(answer{Op: c.Op, ID: c.ID, Error: err.Error()})
				continue
			}
			s.out.answer(s.execute(ctx, c))
			if c.Op == "quit" {
				return nil
			}
		}
	}
}

func readLines(ctx context.Context, script io.Reader, lines chan<- []byte) error {
	scanner := bufio.NewScanner(script)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		line := bytes.TrimSpace(scanner.Bytes())
		if len(line) == 0 {
			continue
		}
		select {
		case lines <- bytes.Clone(line):
		case <-ctx.Done():
			return nil
		}
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("script: %w", err)
	}
	return nil
}
