// Package tiers checks that a ranking does not depend on where cached KV lies: logits from KV on the device, in the
// host's memory and on disk are those of a prompt that is computed as a whole, up to the rounding of bf16.
//
// It runs random checkpoints of every model family through the engine and the cache as the server does. Prompts have
// many cached items, and attention has scratch for a few layers at a time.
package tiers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"grebe/bench/report"
	"grebe/compute"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
	_ "grebe/model/llama" // so that models of its architectures open
	"grebe/model/modeltest"
	_ "grebe/model/qwen"
	"grebe/plan"
)

// Options says what to check. Zero means the default.
type Options struct {
	// Open opens a device whose attention has scratch of so many bytes, 0 for as many as it takes by itself. The caller
	// closes it.
	Open     func(scratch int) (compute.Device, error)
	Families []string // of Families; all
	Items    []int    // cached items of a prompt; 40, 100, 200, 1000
	Scratch  []int    // layers that the scratch holds; 1 to 8
	Layers   int      // of the models; 9
	// Limit is how far a logit may be from that of the recomputation, as a share of the spread of all logits;
	// DefaultLimit. Negative: it has to be the same.
	Limit float64
	Dir   string // for checkpoints and the disk tier; a temporary folder
	JSON  bool   // print JSON
}

// DefaultLimit is eight roundings to bf16, which has eight bits: a few of them meet in a logit behind several layers.
const DefaultLimit = 8.0 / 256

// Families are those that are checked, by name. Head sizes and numbers of heads are different ones.
var Families = []string{"qwen2", "qwen3", "llama", "hstu", "qwen3-fp8"}

// Tiers are where KV lies.
var Tiers = []plan.Tier{plan.Device, plan.Host, plan.Disk}

// Cell is one check.
type Cell struct {
	Family  string  `json:"family"`
	Items   int     `json:"items"`
	Tier    string  `json:"tier"`
	Scratch int     `json:"scratch_layers"`
	Host    int     `json:"items_in_host_memory"` // when they were used
	Off     float64 `json:"max_difference"`       // of a logit from the recomputation's
	Spread  float64 `json:"spread"`               // of these: the largest less the smallest
	Pass    bool    `json:"pass"`
}

// ErrDiffers says that some cells did not pass.
var ErrDiffers = errors.New("tiers: logits from cached KV are not those of the recomputation")

func (o *Options) fill() {
	if len(o.Families) == 0 {
		o.Families = Families
	}
	if len(o.Items) == 0 {
		o.Items = []int{40, 100, 200, 1000}
	}
	if len(o.Scratch) == 0 {
		o.Scratch = []int{1, 2, 3, 4, 5, 6, 7, 8}
	}
	if o.Layers == 0 {
		o.Layers = 9
	}
	if o.Limit == 0 {
		o.Limit = DefaultLimit
	}
	o.Limit = max(o.Limit, 0)
}

// Run checks all combinations and prints a table. Its error is ErrDiffers where some did not pass.
func Run(ctx context.Context, o Options, w io.Writer) ([]Cell, error) {
	o.fill()
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "grebe-tiers-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		o.Dir = dir
	}
	var cells []Cell
	for _, name := range o.Families {
		found, err := o.family(ctx, name)
		cells = append(cells, found...)
		if err != nil {
			return cells, fmt.Errorf("tiers: %s: %w", name, err)
		}
	}
	if o.JSON {
		if err := json.NewEncoder(w).Encode(cells); err != nil {
			return cells, err
		}
	} else if err := o.print(w, cells); err != nil {
		return cells, err
	}
	if slices.ContainsFunc(cells, func(c Cell) bool { return !c.Pass }) {
		return cells, ErrDiffers
	}
	return cells, nil
}

// family checks a model family.
func (o *Options) family(ctx context.Context, name string) ([]Cell, error) {
	dir := filepath.Join(o.Dir, name)
	if err := o.write(dir, name); err != nil {
		return nil, err
	}
	want, shape, err := o.recompute(ctx, dir, name)
	if err != nil {
		return nil, fmt.Errorf("recompute: %w", err)
	}
	var cells []Cell
	for _, layers := range o.Scratch {
		found, err := o.scratch(ctx, dir, name, layers, o.scratchBytes(&shape, layers), want)
		if cells = append(cells, found...); err != nil {
			return cells, fmt.Errorf("scratch of %d layers: %w", layers, err)
		}
	}
	return cells, nil
}

// write makes a checkpoint.
func (o *Options) write(dir, name string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	s := modeltest.Spec{Layers: o.Layers, Vocab: vocabulary, MaxPositions: 4096, DType: compute.BF16, Seed: 5}
	switch strings.TrimSuffix(name, "-fp8") {
	case "qwen2":
		s.Architecture, s.Hidden, s.Heads, s.KVHeads, s.HeadDim, s.Inter = modeltest.Qwen2, 256, 4, 2, 64, 512
	case "qwen3":
		s.Architecture, s.Hidden, s.Heads, s.KVHeads, s.HeadDim, s.Inter = modeltest.Qwen3, 256, 8, 4, 128, 512
	case "llama":
		s.Architecture, s.Hidden, s.Heads, s.KVHeads, s.HeadDim, s.Inter = modeltest.Llama, 288, 3, 3, 96, 512
	case "hstu":
		return hstutest.Write(dir, hstutest.Spec{Hidden: 256, Layers: o.Layers, Heads: 4, HeadDim: 64, Items: vocabulary,
			MaxSeqLen: 4096, DType: compute.BF16, Seed: 5})
	default:
		return fmt.Errorf("no family %q: want one of %s", name, strings.Join(Families, ", "))
	}
	return modeltest.Write(dir, s)
}

const vocabulary = 512

// opened is a model of any family.
type opened interface {
	engineModel
	Close() error
}

func openModel(dir, name string, d compute.Device) (opened, error) {
	opt := model.Options{DType: "bf16", KV: "bf16"}
	if strings.HasSuffix(name, "-fp8") {
		opt.KV = "fp8"
	}
	if hstu.Is(dir) {
		return hstu.Open(dir, d, opt)
	}
	return model.Open(dir, d, opt)
}

// print writes a line for each family, number of items and tier, with a column for each size of the scratch.
func (o *Options) print(w io.Writer, cells []Cell) error {
	t := report.Table(w)
	fmt.Fprint(t, "family\titems\tKV on\tof them in host memory\tspread of logits\tlargest difference with scratch for\t")
	for _, s := range o.Scratch {
		fmt.Fprintf(t, "%d\t", s)
	}
	fmt.Fprint(t, "layers\t\n")
	type line struct {
		family, tier string
		items        int
	}
	var lines []line
	by := map[line][]Cell{}
	for _, c := range cells {
		l := line{c.Family, c.Tier, c.Items}
		if by[l] == nil {
			lines = append(lines, l)
		}
		by[l] = append(by[l], c)
	}
	for _, l := range lines {
		verdict := "pass"
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%.3f\t\t", l.family, l.items, l.tier, by[l][0].Host, by[l][0].Spread)
		for _, c := range by[l] {
			fmt.Fprintf(t, "%.4f\t", c.Off)
			if !c.Pass {
				verdict = "FAIL"
			}
		}
		fmt.Fprintf(t, "%s\t\n", verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	failed := 0
	for _, c := range cells {
		if !c.Pass {
			failed++
		}
	}
	_, err := fmt.Fprintf(w, "%d of %d checks passed; a difference may be %.1f %% of the spread\n", len(cells)-failed,
		len(cells), 100*o.Limit)
	return err
}
