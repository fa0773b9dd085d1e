// Package cli holds what the testbed's programs share on the command line: flags with a written help, one-line errors
// and exit codes, and results as JSON lines.
//
// Exit codes: 0 when the program did what it says, 2 for bad input, 1 for any other failure.
package cli

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
)

// UsageError is bad input: what was given, and what is accepted.
type UsageError struct{ message string }

func (e *UsageError) Error() string { return e.message }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error {
	return &UsageError{fmt.Sprintf(format, args...)}
}

// Exit says in one line what went wrong, if anything, and ends the program.
func Exit(program string, err error) {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
	var usage *UsageError
	if errors.As(err, &usage) {
		os.Exit(2)
	}
	os.Exit(1)
}

// Parse reads the command line. --help prints the text and the flags on standard output and returns flag.ErrHelp.
func Parse(flags *flag.FlagSet, args []string, help string) error {
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(help, "\nFlags:\n")
		flags.SetOutput(os.Stdout)
		flags.PrintDefaults()
		return err
	case err != nil:
		return Usagef("%v; expected the flags that --help lists", err)
	case flags.NArg() > 0:
		return Usagef("argument %q; expected flags only, see --help", flags.Arg(0))
	}
	return nil
}

// Strings is a flag that may be given several times.
type Strings []string

// String is the flag's value in one piece.
func (s *Strings) String() string { return fmt.Sprint(*s) }

// Set adds one value.
func (s *Strings) Set(value string) error {
	*s = append(*s, value)
	return nil
}

// Lines writes one JSON object per line; it may be used by several goroutines.
type Lines struct {
	mu      sync.Mutex
	encoder *json.Encoder
}

// NewLines writes to w.
func NewLines(w io.Writer) *Lines {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return &Lines{encoder: encoder}
}

// Write writes one line. Nobody reads a stream that fails, so the first failure is all there is to say.
func (l *Lines) Write(value any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.encoder.Encode(value)
}
