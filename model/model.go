// Package model turns a Hugging Face checkpoint into a model that runs on a compute.Device.
//
// Open reads config.json, finds the architecture that registered itself under architectures[0], and lets it pack the
// weights. Architectures live in packages below (qwen, llama) and are linked in by a blank import. Most are a few
// lines that describe themselves to package decoder.
//
// The device packs the matrices, and their pages of the checkpoint are released. The embedding and the output
// projection are read in place from the mapped file. So a model holds about as much memory as its checkpoint has
// bytes.
//
// A Model is immutable and may be used by many runners at once.
package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"grebe/compute"
	"grebe/model/safetensors"
)

// Model is a decoder whose weights are on a device.
type Model interface {
	// Shape returns the numbers that runners and KV chunks need.
	Shape() compute.Shape
	// Vocab returns the number of tokens; ids are below it.
	Vocab() int
	// MaxPositions returns the number of positions the model was made for.
	MaxPositions() int
	// DType returns the format in which products are computed: F32 or BF16.
	DType() compute.DType
	// Forward runs all layers over the batch. With keep not nil, only those rows (ascending) are
	// carried through the last layer; with keep empty, the pass ends when all KV is written.
	Forward(r compute.Runner, b *compute.Batch, keep []int32) error
	// Logits sets out[i] to the logit of token pairs[i].ID at row pairs[i].Row.
	Logits(r compute.Runner, pairs []compute.Pair, out []float32) error
	// Head packs the output projection of some tokens, for Project. It is freed when nothing refers to
	// it any more.
	Head(tokens []int32) (compute.Linear, error)
	// Project sets out to the logits of a head's tokens at each row.
	Project(r compute.Runner, head compute.Linear, rows []int32, out []float32) error
	// Hidden copies the final, normed state of each row to out, Shape().Hidden values each.
	Hidden(r compute.Runner, rows []int32, out []float32) error
	// Bytes returns the memory that the weights hold: packed on the device, or read in place.
	Bytes() int64
	// CheckpointBytes returns the size of the tensors in the checkpoint.
	CheckpointBytes() int64
	// Close unmaps the checkpoint. The runners MUST be closed before.
	Close() error
}

// Blender is a Model whose batches may reuse KV that is not a prefix (RCL-5, RCL-6).
type Blender interface {
	Model
	// Blend is Forward with a repair: of the rows that the repair does not choose, the layers after Repair.Layer
	// are not computed, and other rows attend to the KV that stands in for them. The runner MUST be a
	// compute.Blender. With keep nil, the rows chosen are carried through the last layer. A repair that watches repairs
	// nothing: then it is Forward, and Watch is told of every layer.
	Blend(r compute.Runner, b *compute.Batch, repair *Repair, keep []int32) error
}

// Repair says what stands in for rows' own KV and which rows are computed none the less.
type Repair struct {
	// Layer is the last one that computes all rows, below the model's last: 0 is the usual choice.
	Layer int
	// Received: Choose wants to know how much attention each row received in that layer.
	Received bool
	// Load returns the KV that stands in for rows in the layers after Layer. It is called once, when that
	// layer's attention is under way, so that what it waits for loads beside it. What it returns MUST stay
	// unchanged until the batch's results were returned.
	Load func() ([]compute.Part, error)
	// Choose returns the rows that go on, ascending; all that are in keep MUST be among them, and all for which
	// nothing stands in should. received has a value per row, or is nil. The result is used until the pass ends.
	Choose func(received []float32) []int32
	// Watch is nil, or told how much attention each row received in each layer, in order. The values are used again.
	Watch func(layer int, received []float32)
}

// Options say how to open a model. The zero value is a good choice.
type Options struct {
	// DType is the format of products: "auto" or "" (bf16 for a BF16 checkpoint, else f32: bf16 would
	// cut bits off F16 weights), "f32" or "bf16".
	DType string
	// KV is the format of keys and values in memory: "auto" or "" (that of the products), "f32", "bf16", or
	// "fp8", which takes half of what bf16 does and is less exact.
	KV string
	// Weights is the format of the weights of products: "auto" or "" (as the checkpoint has them, if the
	// device computes in that, else that of DType), "bf16" (that of DType), "int8" or "fp8" (quantised at load, on a
	// compute.Quantiser of that). A device that does not compute in FP8 takes "fp8" for checkpoints of FP8 only. With
	// products of FP8, DType is bf16.
	Weights string
	// Keep has regular expressions of matrices that compute in DType, whatever Weights says, such as `layers\.0\.`.
	// Matrices that are multiplied together (queries, keys and values; gate and up) are kept together. One that matches
	// no matrix is an error.
	Keep []string
	// Warn, when set, is told once that weights of 8 bits are expanded, and now and then, by any goroutine and as long as
	// the model is open, that items cannot be read again.
	Warn func(text string)
	// Progress, when set, is called now and then with the bytes of weights loaded so far and in all.
	Progress func(done, total int64)
	// Context, when set, ends the loading: it is looked at before every matrix.
	Context context.Context
}

// Build makes the model of an architecture. When it fails, Open releases the checkpoint; when it
// succeeds, the model owns it.
type Build func(c *Checkpoint) (Model, error)

var builders = map[string]Build{}

// Register makes an architecture known under its name in architectures[0]. It is called from init
// functions only and panics on a second registration.
func Register(architecture string, build Build) {
	if builders[architecture] != nil {
		panic("model: " + architecture + " registered twice")
	}
	builders[architecture] = build
}

// Architectures returns the registered names, sorted.
func Architectures() []string { return slices.Sorted(maps.Keys(builders)) }

// Open loads the checkpoint in dir onto a device. The caller MUST Close the model.
func Open(dir string, dev compute.Device, opts Options) (Model, error) {
	if files, err := filepath.Glob(filepath.Join(dir, "*.gguf")); err == nil && len(files) > 0 {
		if !hasFile(dir, safetensors.SingleFile) && !hasFile(dir, safetensors.IndexFile) {
			return nil, fmt.Errorf("model: %s: GGUF is not supported: %s", files[0], use)
		}
	}
	cfg, err := ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	build := builders[cfg.Architecture]
	if build == nil {
		return nil, fmt.Errorf("model: %s: architecture %q is unknown; known are %s",
			dir, cfg.Architecture, strings.Join(Architectures(), ", "))
	}
	c, err := openCheckpoint(dir, cfg, dev, opts)
	if err != nil {
		return nil, err
	}
	m, err := build(c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("model: load %s: %w", dir, err), c.Close())
	}
	return m, nil
}

func hasFile(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// Loading returns the context of the loading.
func (o *Options) Loading() context.Context {
	if o.Context == nil {
		return context.Background()
	}
	return o.Context
}

func openCheckpoint(dir string, cfg *Config, dev compute.Device, opts Options) (*Checkpoint, error) {
	weights, err := safetensors.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	c := &Checkpoint{Config: cfg, Device: dev, weights: weights, progress: opts.Progress, total: weights.Bytes(),
		ctx: opts.Loading(), warn: opts.Warn}
	c.DType, err = c.chooseDType(opts.DType)
	if err == nil {
		err = c.chooseWeights(opts.Weights, opts.DType)
	}
	if err == nil {
		err = c.chooseKept(opts.Keep)
	}
	if err == nil {
		c.KV, err = c.chooseKV(opts.KV)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("model: %s: %w", dir, err), c.Close())
	}
	return c, nil
}
