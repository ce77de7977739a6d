package serving

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"grebe/compute"
	"grebe/model/modeltest"
)

// shapes are the models that Make writes. Their vocabularies have what prompts and codes need and no more: its size
// changes nothing of a search.
var shapes = map[string]modeltest.Spec{
	"tiny": {Architecture: modeltest.Qwen3, Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 32, Inter: 128},
	"qwen3-0.6b": {Architecture: modeltest.Qwen3,
		Hidden: 1024, Layers: 28, Heads: 16, KVHeads: 8, HeadDim: 128, Inter: 3072},
	"qwen2-1.5b": {Architecture: modeltest.Qwen2,
		Hidden: 1536, Layers: 28, Heads: 12, KVHeads: 2, HeadDim: 128, Inter: 8960},
	"qwen3-1.7b": {Architecture: modeltest.Qwen3,
		Hidden: 2048, Layers: 28, Heads: 16, KVHeads: 8, HeadDim: 128, Inter: 6144},
}

// Files describe what Make writes. Zero means the default.
type Files struct {
	Shape string // qwen3-0.6b
	// Rank is the shape of a second model, which ranks the first 20,000 items; none.
	Rank  string
	Items int // with three random codes each; 1,000,000
	Codes int // of a level; 512
	Users int // with 500 to 1,500 random tokens each, or with events; 2,000
	// Events of each user, for a model of events; the shape's.
	Events int
	// Memory is the device's for KV, as models[].device_memory has it; 20GiB: with the other defaults two thirds of the
	// tokens of prompts are cached.
	Memory string
	// Features of each item, for a model of events: each has a table with as many rows as there are items; none.
	Features int
	// DeviceRows, for a model of events, has the rows of each table lie in a file, of which device_rows caches that much
	// on the device; none: they are on the device.
	DeviceRows string
	Seed       uint64
}

const (
	levels   = 3
	ranked   = 20_000 // items with tokens, which can be ranked
	perItem  = 15     // tokens of these
	share    = 10     // of the values of each item's attribute
	plain    = 4096   // tokens that are no codes
	shortest = 500
	longest  = 1500
)

func (f *Files) prepare() error {
	if f.Shape == "" {
		f.Shape = "qwen3-0.6b"
	}
	if f.Memory == "" {
		f.Memory = "20GiB"
	}
	set(&f.Items, 1_000_000)
	set(&f.Codes, 512)
	set(&f.Users, 2000)
	set(&f.Seed, 1)
	for _, shape := range []string{f.Shape, f.Rank} {
		_, text := shapes[shape]
		if _, events := eventModels[shape]; !text && shape != "" && (!events || shape == f.Rank) {
			return fmt.Errorf("serving: no model %q: want one of %v", shape, known())
		}
	}
	if _, events := eventModels[f.Shape]; events && f.Rank != "" {
		return fmt.Errorf("serving: %q and %q do not have the same users", f.Shape, f.Rank)
	}
	if _, events := eventModels[f.Shape]; !events && (f.DeviceRows != "" || f.Features > 0) {
		return fmt.Errorf("serving: %q has no tables: features, and rows on the device, are of models of events", f.Shape)
	}
	if f.Rank == f.Shape {
		return fmt.Errorf("serving: one model %q cannot have both names", f.Rank)
	}
	return nil
}

// configFile is the name of the configuration that Make writes.
const configFile = "grebe.yaml"

// checkpoints are the folders of the first model: two of one shape with different weights, for reloads.
var checkpoints = [2]string{"checkpoint-1", "checkpoint-2"}

// current is the first model's path, a link to one of its checkpoints.
const current = "current"

// Make writes two checkpoints, items, users and grebe.yaml to a folder, and returns the name of the last.
func Make(dir string, f Files) (string, error) {
	if err := f.prepare(); err != nil {
		return "", err
	}
	if _, events := eventModels[f.Shape]; events {
		return f.makeEvents(dir)
	}
	for i, name := range checkpoints {
		if err := checkpoint(filepath.Join(dir, name), f.Shape, plain+levels*f.Codes, f.Seed+uint64(i)); err != nil {
			return "", err
		}
	}
	if err := link(filepath.Join(dir, current), checkpoints[0]); err != nil {
		return "", err
	}
	if f.Rank != "" {
		if err := checkpoint(filepath.Join(dir, f.Rank), f.Rank, ranked, f.Seed); err != nil {
			return "", err
		}
	}
	r := rand.New(rand.NewPCG(f.Seed, 25))
	err := lines(filepath.Join(dir, "items.ndjson"), f.Items, func(i int) any {
		codes := make([]int, levels)
		for l := range codes {
			codes[l] = r.IntN(f.Codes)
		}
		tenth := map[string]any{"tenth": []string{strconv.Itoa(r.IntN(share))}}
		item := map[string]any{"id": fmt.Sprint("i", i), "codes": codes, "attributes": tenth}
		if f.Rank != "" && i < ranked {
			item["identifier"], item["tokens"] = i, draw(r, perItem)
		}
		return item
	})
	if err != nil {
		return "", err
	}
	err = lines(filepath.Join(dir, "users.ndjson"), f.Users, func(i int) any {
		return map[string]any{"id": userID(i), "tokens": draw(r, shortest+r.IntN(longest-shortest+1))}
	})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, configFile)
	return name, os.WriteFile(name, f.config(), 0o600)
}

// checkpoint writes a model of random weights.
func checkpoint(dir, shape string, vocab int, seed uint64) error {
	spec := shapes[shape]
	spec.Vocab, spec.MaxPositions, spec.Tied, spec.DType, spec.Seed = vocab, 4096, true, compute.BF16, seed
	return modeltest.Write(dir, spec)
}

// link makes path a link to a folder beside it, in one step.
func link(path, to string) error {
	next := path + ".next"
	_ = os.Remove(next) // of a run that was killed
	if err := os.Symlink(to, next); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// draw returns n random tokens that are no codes.
func draw(r *rand.Rand, n int) []int {
	tokens := make([]int, n)
	for i := range tokens {
		tokens[i] = r.IntN(plain)
	}
	return tokens
}

// lines writes n values, one a line.
func lines(name string, n int, value func(i int) any) (err error) {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := bufio.NewWriterSize(file, 1<<20)
	enc := json.NewEncoder(w)
	for i := range n {
		if err := enc.Encode(value(i)); err != nil {
			return err
		}
	}
	return w.Flush()
}

// config is grebe.yaml.
func (f *Files) config() []byte {
	b := fmt.Appendf(nil, `models:
  - name: %[1]s
    path: ./%[7]s
    prompt: {instruction: {tokens: [1, 2, 3]}, generate_instruction: {tokens: [1, 2, 3]}}
    codes: {first_token: [%[2]d, %[3]d, %[4]d], size: [%[5]d, %[5]d, %[5]d]}
    device_memory: %[6]s
`, f.Shape, plain, plain+f.Codes, plain+2*f.Codes, f.Codes, f.Memory, current)
	if f.Rank != "" {
		b = fmt.Appendf(b, `  - name: %[1]s
    path: ./%[1]s
    prompt: {instruction: {tokens: [1, 2, 3]}}
    scoring: {kind: identifier}
    device_memory: %[2]s
`, f.Rank, f.Memory)
	}
	return append(b, settings(16_384)...)
}

// settings are those of the server, for batches of so many tokens.
func settings(tokens int) []byte {
	return fmt.Appendf(nil, `limits: {in_flight: 4096}
engine: {queue: 4096, max_tokens: %d}
cache: {ahead: "off", host_memory: 64MiB}
catalog: {items: items.ndjson, users: users.ndjson, versions: 1}
`, tokens)
}
