package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// Key is an API key in the file that auth.keys names. What its values mean is checked by those who use it.
type Key struct {
	Name   string   `yaml:"name"`
	SHA256 string   `yaml:"sha256"`
	Roles  []string `yaml:"roles"`
	Rate   float64  `yaml:"rate"`
	Burst  int      `yaml:"burst"`
}

// ReadKeys reads a YAML list of keys.
func ReadKeys(name string) ([]Key, error) {
	data, err := readBounded(name)
	if err != nil {
		return nil, fmt.Errorf("read the keys: %w", err)
	}
	keys, err := decodeKeys(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return keys, nil
}

// decodeKeys refuses what it does not know: a misspelled rate would be no limit.
func decodeKeys(data []byte) ([]Key, error) {
	var keys []Key
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&keys); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, errors.New("has no keys: `grebe key` makes one, and without a file everyone is let in")
	}
	return keys, nil
}
