package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

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
