package config

import (
	"bytes"
	"errors"
	"io"

	"go.yaml.in/yaml/v3"
)

// Part is a piece of a YAML file that is decoded later, with Onto.
type Part = yaml.Node

// Decode decodes YAML onto a struct with yaml tags. Unknown keys are errors. Fields whose keys are not there stay as
// they are.
func Decode(data []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// Onto decodes a part onto a struct, as Decode does. A part that is not there changes nothing.
func Onto(p *Part, into any) error {
	if p.IsZero() {
		return nil
	}
	data, err := yaml.Marshal(p)
	if err != nil {
		return err
	}
	return Decode(data, into)
}
