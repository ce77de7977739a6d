package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"grebe/internal/readfile"
)

// openIndex opens the shards that an index names. Every tensor must be where the index says, and
// nowhere else.
func openIndex(dir, path string) (*Set, error) {
	raw, err := readfile.Regular(path, maxHeader)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	weightMap, err := parseIndex(raw)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
	}
	s := &Set{tensors: map[string]entry{}}
	if err := s.addShards(dir, weightMap); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Set) addShards(dir string, weightMap map[string]string) error {
	var files []string
	for _, file := range weightMap {
		files = append(files, file)
	}
	slices.Sort(files)
	for _, file := range slices.Compact(files) {
		if err := s.add(filepath.Join(dir, file)); err != nil {
			return err
		}
	}
	for name, file := range weightMap {
		want := filepath.Join(dir, file)
		if t, ok := s.tensors[name]; !ok || t.File != want {
			return fmt.Errorf("safetensors: tensor %q is not in %s, where the index has it", name, want)
		}
	}
	return nil
}

// parseIndex returns the index's weight_map, tensor to file, with every file a plain path below the
// checkpoint's folder.
func parseIndex(raw []byte) (map[string]string, error) {
	p := headerParser{dec: json.NewDecoder(bytes.NewReader(raw))}
	p.dec.UseNumber()
	var weightMap map[string]string
	err := p.object(func(key string) error {
		if key != "weight_map" {
			var skip json.RawMessage
			return p.dec.Decode(&skip)
		}
		if weightMap != nil {
			return errors.New("weight_map occurs twice")
		}
		var err error
		weightMap, err = p.weightMap()
		return err
	})
	if err != nil {
		return nil, err
	}
	if _, err := p.dec.Token(); err != io.EOF {
		return nil, errors.New("something follows the JSON object")
	}
	if len(weightMap) == 0 {
		return nil, errors.New("no weight_map, or an empty one")
	}
	return weightMap, nil
}

func (p *headerParser) weightMap() (map[string]string, error) {
	m := map[string]string{}
	err := p.object(func(name string) error {
		file, err := p.text()
		if err != nil {
			return fmt.Errorf("weight_map: tensor %q: %w", name, err)
		}
		if _, ok := m[name]; ok {
			return fmt.Errorf("weight_map: tensor %q occurs twice", name)
		}
		if !filepath.IsLocal(file) || filepath.Clean(file) != file || filepath.Ext(file) != ".safetensors" {
			return fmt.Errorf("weight_map: tensor %q: %.200q is not the name of a .safetensors file in this folder", name, file)
		}
		if len(m) == maxTensors {
			return fmt.Errorf("weight_map: more than %d tensors", maxTensors)
		}
		m[name] = file
		return nil
	})
	return m, err
}
