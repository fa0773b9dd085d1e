// Package cli holds what the testbed's programs share on the command line: flags with a written help, one-line errors
// and exit codes, and results as JSON lines.
//
// Exit codes: 0 when the program did what it says, 2 for bad input, 1 for any other failure.
package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
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

// Kind is how the value of a key is written.
type Kind int

// Kinds of values.
const (
	Text Kind = iota
	Number
	Integer // decimal, or hexadecimal with 0x
	Boolean // true or false
)

// Key says which JSON field a short key of the command line stands for.
type Key struct {
	Field string
	Kind  Kind
}

// DecodeKeyValues reads "key=value,key=value" into target as if the fields had been written in JSON, so that both forms
// are checked by the same code.
func DecodeKeyValues(flagName, text string, keys map[string]Key, target any) error {
	fields := map[string]any{}
	for _, pair := range strings.Split(text, ",") {
		name, value, result := strings.Cut(pair, "=")
		key, known := keys[name]
		if !result || !known {
			return Usagef("%s: %q; expected key=value pairs with the keys %s", flagName, pair, names(keys))
		}
		if _, twice := fields[key.Field]; twice {
			return Usagef("%s: key %q is there twice", flagName, name)
		}
		parsed, err := parseValue(key.Kind, value)
		if err != nil {
			return Usagef("%s: %s=%s; expected %v", flagName, name, value, err)
		}
		fields[key.Field] = parsed
	}
	encoded, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("%s: %w", flagName, err)
	}
	return DecodeStrict(flagName, encoded, target)
}

func names(keys map[string]Key) string {
	list := make([]string, 0, len(keys))
	for name := range keys {
		list = append(list, name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func parseValue(kind Kind, value string) (any, error) {
	switch kind {
	case Number:
		number, err := strconv.ParseFloat(value, 64)
		if err != nil || number-number != 0 {
			return nil, errors.New("a number")
		}
		return number, nil
	case Integer:
		number, err := strconv.ParseUint(value, 0, 64)
		if err != nil {
			return nil, errors.New("a whole number, hexadecimal with 0x")
		}
		return number, nil
	case Boolean:
		truth, err := strconv.ParseBool(value)
		if err != nil {
			return nil, errors.New("true or false")
		}
		return truth, nil
	case Text:
	}
	return value, nil
}

// DecodeStrict reads one JSON value into target and refuses unknown fields and anything after it.
func DecodeStrict(source string, encoded []byte, target any) error {
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(target); err != nil {
		return Usagef("%s: %s", source, strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Usagef("%s: more than one JSON value", source)
	}
	return nil
}
