package quantise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"

	"grebe/compute"
	"grebe/model"
	"grebe/model/safetensors"
)

// MostKept is the largest share of the products' operations that a calibration keeps.
const MostKept = 0.1

// RankedRows is Calibration.Read of models that only rank. They read one row of a ranking by identifier, and one of
// each candidate of pointwise questions, whose text and question have four tokens or more.
const RankedRows = 0.25

// operations is how many operations a product of a matrix of size values takes, relative to a row of a request. Behind
// the attention of the last layer only rows that are read are computed.
func operations(product string, layer, layers, size int, read float64) float64 {
	if layer == layers-1 && product != "qkv" {
		return cmp.Or(read, 1) * float64(size)
	}
	return float64(size)
}

// Calibration says how to calibrate.
type Calibration struct {
	Dir    string         // folder of the checkpoint
	Device compute.Device // computes; a compute.Quantiser of Format
	Format compute.DType  // INT8 or FP8
	// Prompts are tokens like those that the model will read. Some hundred are enough.
	Prompts [][]int32
	// Most is the largest share of the operations to keep; 0: MostKept.
	Most float64
	// Read is the share of a request's rows that are read at the end; 0: all. Searches read their beams, which are most of
	// the rows behind a short prompt; for rankings see RankedRows.
	Read float64
}

// Sensitivity says what rounding one product of a layer to 8 bits changes.
type Sensitivity struct {
	Layer   int    `json:"layer"`
	Product string `json:"product"` // qkv, out, gate_up or down
	// Error is the change of a token's state at the end of the model, which logits are made of, relative to the state:
	// the root of the mean square over the prompts' tokens. All other products are exact.
	Error float64 `json:"error"`
	Share float64 `json:"share"` // of the operations of all products
	Kept  bool    `json:"kept"`
}

// Pattern is the regular expression of the product's matrices, for Options.Keep and model.Options.Keep.
func (s *Sensitivity) Pattern() string {
	return fmt.Sprintf(`layers\.%d\.%s_proj`, s.Layer, map[string]string{"qkv": `self_attn\.[qkv]`, "out": `self_attn\.o`,
		"gate_up": `mlp\.(gate|up)`, "down": `mlp\.down`}[s.Product])
}

// Kept returns the patterns of the products that are kept.
func Kept(all []Sensitivity) (patterns []string) {
	for i := range all {
		if all[i].Kept {
			patterns = append(patterns, all[i].Pattern())
		}
	}
	return patterns
}

// Calibrate measures every product of a checkpoint and chooses those to keep in the format of the checkpoint: the ones
// with the largest squared error per operation, up to c.Most of the operations. The result is in the order of the
// layers.
//
// A layer is computed as it is, and with one product after the other in 8 bits, on the exact states behind the layer
// before it. Each of the states that differ goes through all later layers as they are: an early layer's error may
// shrink on the way, and a late one's cannot. The cost is that of 2·layers passes over the prompts and of packing every
// matrix twice. A CPU needs room for one layer beside what it holds, a GPU keeps some more until the end, and both need
// 4·layers states of the prompts.
func Calibrate(ctx context.Context, c Calibration) ([]Sensitivity, error) {
	fail := func(err error) ([]Sensitivity, error) { return nil, fmt.Errorf("calibrate %s: %w", c.Dir, err) }
	cfg, err := model.ReadConfig(c.Dir)
	if err != nil {
		return nil, err
	}
	if cfg.Quantisation != nil {
		return fail(fmt.Errorf("it is quantised already, to %s", cfg.Quantisation.DType))
	}
	b, rows := promptBatch(c.Prompts)
	if rows == 0 {
		return fail(errors.New("no prompts"))
	}
	source := &lazyDevice{Device: c.Device, format: c.Format}
	m, err := model.Open(c.Dir, source, model.Options{Weights: c.Format.String(), Context: ctx})
	if err != nil {
		return nil, err
	}
	defer m.Close()
	var seen collector
	if err := m.Forward(&seen, b, nil); err != nil {
		return fail(err)
	}
	p := &prober{device: c.Device, model: m, format: c.Format, exact: m.DType(), shape: m.Shape(), batch: b, rows: rows,
		last: len(seen.layers) - 1, read: c.Read}
	all, err := p.run(ctx, &seen)
	if err != nil {
		return fail(err)
	}
	choose(all, cmp.Or(c.Most, MostKept))
	return all, nil
}

// promptBatch returns a batch of prompts without its memory.
func promptBatch(prompts [][]int32) (*compute.Batch, int) {
	b := &compute.Batch{}
	for _, p := range prompts {
		if len(p) == 0 {
			continue
		}
		b.Segments = append(b.Segments, compute.Segment{First: len(b.Tokens), Len: len(p),
			Chunks: []compute.Chunk{{Tokens: len(p)}}})
		for i, token := range p {
			b.Tokens, b.Positions = append(b.Tokens, token), append(b.Positions, int32(i))
		}
	}
	return b, len(b.Tokens)
}

// lazyDevice packs matrices of the format only when they are asked for.
type lazyDevice struct {
	compute.Device
	format compute.DType
}

// Quantises makes the device a compute.Quantiser.
func (d *lazyDevice) Quantises(dt compute.DType) bool {
	q, ok := d.Device.(compute.Quantiser)
	return ok && q.Quantises(dt)
}

// Linear keeps parts, which lie in the checkpoint.
func (d *lazyDevice) Linear(dt compute.DType, parts ...compute.Tensor) (compute.Linear, error) {
	if dt != d.format {
		return d.Device.Linear(dt, parts...)
	}
	pack := func(dt compute.DType) (compute.Linear, error) { return d.Device.Linear(dt, parts...) }
	return &lazy{parts, pack}, nil
}

// GateUp keeps both matrices.
func (d *lazyDevice) GateUp(dt compute.DType, gate, up compute.Tensor) (compute.Linear, error) {
	if dt != d.format {
		return d.Device.GateUp(dt, gate, up)
	}
	pack := func(dt compute.DType) (compute.Linear, error) { return d.Device.GateUp(dt, gate, up) }
	return &lazy{[]compute.Tensor{gate, up}, pack}, nil
}

// lazy is a matrix that is not packed.
type lazy struct {
	parts []compute.Tensor
	pack  func(dt compute.DType) (compute.Linear, error)
}

func (l *lazy) In() int      { return l.parts[0].Cols }
func (l *lazy) Bytes() int64 { return 0 }

func (l *lazy) Out() (n int) {
	for i := range l.parts {
		n += l.parts[i].Rows
	}
	return n
}

// collector is a runner that only notes the weights that a forward pass uses.
type collector struct {
	compute.Runner
	embedding compute.Table
	layers    []layerWeights
}

type layerWeights struct {
	attention compute.AttentionWeights
	ffn       compute.FFNWeights
}

func (c *collector) Begin(*compute.Batch) error       { return nil }
func (c *collector) Embed(t compute.Table)            { c.embedding = t }
func (c *collector) Attend(int)                       {}
func (c *collector) Output(*compute.AttentionWeights) {}
func (c *collector) FFN(w *compute.FFNWeights)        { c.layers[len(c.layers)-1].ffn = *w }

func (c *collector) QKV(_ int, w *compute.AttentionWeights) {
	c.layers = append(c.layers, layerWeights{attention: *w})
}

// prober measures layers on a device.
type prober struct {
	device        compute.Device
	model         model.Model
	format, exact compute.DType
	shape         compute.Shape
	batch         *compute.Batch
	rows, last    int // the last layer
	read          float64

	runner compute.Runner
	all    []int32 // rows
}

// run measures all layers.
func (p *prober) run(ctx context.Context, seen *collector) (out []Sensitivity, err error) {
	free, err := p.open()
	defer func() { err = errors.Join(err, free()) }()
	if err != nil {
		return nil, err
	}
	states, err := p.pass(seen.embedding, 0, nil)
	if err != nil {
		return nil, err
	}
	p.batch.Tokens = p.all // from here on, a token is the row of a table of states
	var moved [][]float32  // the states with one product rounded, of each so far
	for i := range seen.layers {
		own, next, err := p.layer(ctx, i, &seen.layers[i], states, &moved)
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		out, states = append(out, own...), next
		runtime.GC() // frees the layer's matrices and tables, which are outside of Go's heap
	}
	all := 0.0
	for i := range out {
		all += out[i].Share
	}
	for i := range out {
		s := &out[i]
		s.Share /= all
		s.Error = change(moved[i], states, p.shape.Hidden)
		if math.IsNaN(s.Error) || math.IsInf(s.Error, 0) {
			return nil, fmt.Errorf("layer %d: %s: a state is infinite or no number", s.Layer, s.Product)
		}
	}
	return out, nil
}

// open opens the runner and takes memory for keys and values.
func (p *prober) open() (free func() error, err error) {
	var blocks []compute.Block
	memory := p.device.Memory()
	free = func() (err error) {
		if p.runner != nil {
			err = p.runner.Close()
		}
		for _, b := range blocks {
			memory.Free(b)
		}
		return err
	}
	for i := range p.batch.Segments {
		s := &p.batch.Segments[i]
		block, err := memory.Alloc(p.shape.ChunkBytes(s.Len, false))
		if err != nil {
			return free, err
		}
		blocks = append(blocks, block)
		s.Chunks = []compute.Chunk{block.Chunk(s.Len, false)}
	}
	for row := range p.rows {
		p.all = append(p.all, int32(row))
	}
	p.runner, err = p.device.Open(p.shape, p.rows)
	return free, err
}

// layer takes the exact states and those that moved through a layer. It returns the former and the layer's products,
// with the number of their operations as the share, and adds to moved the states with each of them rounded.
func (p *prober) layer(ctx context.Context, i int, w *layerWeights, states []float32, moved *[][]float32) (
	[]Sensitivity, []float32, error) {
	exact, own, err := p.pack(i, w)
	if err != nil {
		return nil, nil, err
	}
	for k, other := range *moved {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		table, err := p.table(other)
		if err != nil {
			return nil, nil, err
		}
		if (*moved)[k], err = p.pass(table, i, exact); err != nil {
			return nil, nil, err
		}
	}
	table, err := p.table(states)
	if err != nil {
		return nil, nil, err
	}
	want, err := p.pass(table, i, exact)
	if err != nil {
		return nil, nil, err
	}
	var out []Sensitivity
	for _, o := range own {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		changed := *exact
		o.set(&changed)
		got, err := p.pass(table, i, &changed)
		if err != nil {
			return nil, nil, err
		}
		out = append(out, Sensitivity{Layer: i, Product: o.product,
			Share: operations(o.product, i, p.last+1, o.size, p.read)})
		*moved = append(*moved, got)
	}
	return out, want, nil
}

// table has states as the embeddings of tokens.
func (p *prober) table(states []float32) (compute.Table, error) {
	return p.device.Table(compute.Tensor{DType: compute.F32, Rows: p.rows, Cols: p.shape.Hidden,
		Data: safetensors.Encode(nil, compute.F32, states...)})
}

// rounded is one product of a layer in 8 bits.
type rounded struct {
	product string
	size    int
	set     func(w *layerWeights)
}

// pack returns a layer as it is in the checkpoint, and its products in 8 bits.
func (p *prober) pack(layer int, w *layerWeights) (*layerWeights, []rounded, error) {
	exact := *w
	var out []rounded
	for _, x := range []struct {
		product string
		at      func(w *layerWeights) *compute.Linear
	}{
		{"qkv", func(w *layerWeights) *compute.Linear { return &w.attention.QKV }},
		{"out", func(w *layerWeights) *compute.Linear { return &w.attention.Out }},
		{"gate_up", func(w *layerWeights) *compute.Linear { return &w.ffn.GateUp }},
		{"down", func(w *layerWeights) *compute.Linear { return &w.ffn.Down }},
	} {
		l, ok := (*x.at(w)).(*lazy)
		if !ok {
			return nil, nil, fmt.Errorf("%s is not quantised", x.product)
		}
		whole, err := l.pack(p.exact)
		if err != nil {
			return nil, nil, err
		}
		eight, err := l.pack(p.format)
		if err != nil {
			return nil, nil, err
		}
		*x.at(&exact) = whole
		out = append(out, rounded{x.product, l.In() * l.Out(), func(w *layerWeights) { *x.at(w) = eight }})
	}
	return &exact, out, nil
}

// pass returns the states behind a layer, or those of the table without one. Behind the last layer it returns what
// logits are made of.
func (p *prober) pass(table compute.Table, layer int, w *layerWeights) ([]float32, error) {
	r := p.runner
	if err := r.Begin(p.batch); err != nil {
		return nil, err
	}
	r.Embed(table)
	if w != nil {
		r.QKV(layer, &w.attention)
		r.Attend(layer)
		r.Output(&w.attention)
		r.FFN(&w.ffn)
	}
	out := make([]float32, p.rows*p.shape.Hidden)
	if w != nil && layer == p.last {
		return out, p.model.Hidden(r, p.all, out)
	}
	return out, r.Hidden(nil, p.all, out)
}

// change is the root of the mean, over rows, of the squared distance relative to the row. Rows of zeros do not count.
func change(got, want []float32, width int) float64 {
	sum, n := 0.0, 0
	for at := 0; at < len(want); at += width {
		diff, all := 0.0, 0.0
		for i, w := range want[at : at+width] {
			d := float64(got[at+i]) - float64(w)
			diff, all = diff+d*d, all+float64(w)*float64(w)
		}
		if all > 0 {
			sum, n = sum+diff/all, n+1
		}
	}
	return math.Sqrt(sum / float64(max(n, 1)))
}

// choose marks the products to keep, at most a share of the operations.
func choose(all []Sensitivity, most float64) {
	order := make([]*Sensitivity, len(all))
	for i := range all {
		order[i] = &all[i]
	}
	gain := func(s *Sensitivity) float64 { return s.Error * s.Error / s.Share }
	slices.SortStableFunc(order, func(a, b *Sensitivity) int { return cmp.Compare(gain(b), gain(a)) })
	kept := 0.0
	for _, s := range order {
		if kept+s.Share <= most && s.Error > 0 {
			s.Kept = true
			kept += s.Share
		}
	}
}

// Sizes of what a calibration reads.
const (
	promptCount  = 4
	promptTokens = 64
)

// defaultText is read where there is nothing better.
const defaultText = "The customer bought a kettle, two cups and a pair of running shoes last week, and looked at " +
	"lamps, garden chairs and a book about birds. She asked for something light, under 40 euros, that arrives before " +
	"Friday. "

// Prompts makes prompts for a calibration from texts, such as those of a catalog's items. Without texts it takes a
// default, and without a tokenizer (encode is nil) or words that it knows tokens from all of the vocabulary.
func Prompts(encode func(dst []int32, text string) []int32, texts []string, vocab int) [][]int32 {
	const want = promptCount * promptTokens
	var tokens []int32
	if encode != nil {
		for _, text := range append(slices.Clone(texts), defaultText) {
			if tokens = encode(tokens, text+"\n"); len(tokens) >= want {
				break
			}
		}
	}
	for n, random := len(tokens), uint32(1); len(tokens) < want; {
		if n > 0 {
			tokens = append(tokens, tokens[len(tokens)%n])
			continue
		}
		random = random*1664525 + 1013904223
		tokens = append(tokens, int32(random>>8)%int32(vocab))
	}
	return slices.Collect(slices.Chunk(tokens[:want], promptTokens))
}
