package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"grebe/compute"
	"grebe/model/safetensors"
)

// Quantisation is the quantization_config of a checkpoint: how its matrices are stored. Which of them are is told by
// their own format: lists of ignored modules only say the same again.
type Quantisation struct {
	DType compute.DType // FP8 (e4m3) or INT8
	// Block has the rows and columns that share a scale, stored in weight_scale_inv. Zeros: weight_scale has one for
	// each row, or one for all.
	Block [2]int
	// Activations: the author meant inputs of products to be rounded too.
	Activations bool
}

// quantisationFile is quantization_config as transformers, vLLM and compressed-tensors write it.
type quantisationFile struct {
	Method string `json:"quant_method"`

	// fp8
	Format    string `json:"fmt"`
	BlockSize []int  `json:"weight_block_size"`

	// compressed-tensors
	Groups   map[string]quantisationGroup `json:"config_groups"`
	Packing  string                       `json:"format"`
	KV       json.RawMessage              `json:"kv_cache_scheme"`
	Sparsity struct {
		Format string `json:"format"`
	} `json:"sparsity_config"`
}

type quantisationGroup struct {
	Weights     *quantisationScheme `json:"weights"`
	Activations *quantisationScheme `json:"input_activations"`
}

type quantisationScheme struct {
	Bits      int    `json:"num_bits"`
	Type      string `json:"type"`
	Strategy  string `json:"strategy"`
	Symmetric *bool  `json:"symmetric"`
	Block     []int  `json:"block_structure"`
}

// use says what to do instead of a checkpoint that cannot be read.
const use = "use the original checkpoint, with weights: int8 for products of 8 bits on a CPU"

// refusedMethods are those that people try.
var refusedMethods = map[string]string{
	"awq": "AWQ", "gptq": "GPTQ", "bitsandbytes": "bitsandbytes", "gguf": "GGUF", "auto-round": "AutoRound",
	"hqq": "HQQ", "mxfp4": "MXFP4", "modelopt": "ModelOpt", "quark": "Quark", "torchao": "torchao",
}

// parseQuantisation reads a quantization_config; nil where there is none.
func parseQuantisation(raw json.RawMessage) (*Quantisation, error) {
	if s := string(raw); s == "" || s == "null" {
		return nil, nil
	}
	var f quantisationFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, fmt.Errorf("quantization_config: %w", err)
	}
	var q *Quantisation
	var err error
	switch f.Method {
	case "fp8":
		q, err = f.fp8()
	case "compressed-tensors":
		q, err = f.compressed()
	case "":
		err = errors.New("quant_method is missing: want fp8 or compressed-tensors")
	default:
		name := refusedMethods[strings.ToLower(f.Method)]
		if name == "" {
			name = fmt.Sprintf("%.40q", f.Method)
		}
		err = fmt.Errorf("%s is not supported, want fp8 or compressed-tensors: %s", name, use)
	}
	if err != nil {
		return nil, fmt.Errorf("quantization_config: %w", err)
	}
	return q, nil
}

func (f *quantisationFile) fp8() (*Quantisation, error) {
	if f.Format != "" && f.Format != "e4m3" {
		return nil, fmt.Errorf("fmt %q is not supported, want e4m3", f.Format)
	}
	q := &Quantisation{DType: compute.FP8, Activations: true}
	return q, q.setBlock("weight_block_size", f.BlockSize)
}

// setBlock takes the size of blocks, if there is one.
func (q *Quantisation) setBlock(name string, size []int) error {
	if len(size) == 0 {
		return nil
	}
	if len(size) != 2 || size[0] < 1 || size[1] < 1 || size[0] > maxInter || size[1] > maxInter {
		return fmt.Errorf("%s is %v, want two sizes such as [128, 128]", name, size)
	}
	q.Block = [2]int(size)
	return nil
}

func (f *quantisationFile) compressed() (*Quantisation, error) {
	if kv := string(f.KV); kv != "" && kv != "null" {
		return nil, errors.New("kv_cache_scheme is not supported: remove it, and set kv_dtype: fp8 for KV of 8 bits")
	}
	if s := f.Sparsity.Format; s != "" && s != "dense" {
		return nil, fmt.Errorf("sparsity_config: format %q is not supported: %s", s, use)
	}
	switch f.Packing {
	case "", "float-quantized", "int-quantized", "naive-quantized":
	default:
		return nil, fmt.Errorf("format %q is not supported, want float-quantized or int-quantized: %s", f.Packing, use)
	}
	var q *Quantisation
	for name, g := range f.Groups {
		own, err := g.quantisation()
		if err != nil {
			return nil, fmt.Errorf("config_groups.%s: %w", name, err)
		}
		if q != nil && *own != *q {
			return nil, errors.New("config_groups differ from each other, which is not supported")
		}
		q = own
	}
	if q == nil {
		return nil, errors.New("config_groups is empty")
	}
	return q, nil
}

func (g *quantisationGroup) quantisation() (*Quantisation, error) {
	w := g.Weights
	if w == nil {
		return nil, errors.New("weights is missing")
	}
	if w.Bits != 8 {
		return nil, fmt.Errorf("weights of %d bits are not supported, want 8: %s", w.Bits, use)
	}
	if w.Symmetric != nil && !*w.Symmetric {
		return nil, errors.New("weights with zero points are not supported, want symmetric: true")
	}
	q := &Quantisation{Activations: g.Activations != nil}
	switch w.Type {
	case "float":
		q.DType = compute.FP8
	case "int":
		q.DType = compute.INT8
	default:
		return nil, fmt.Errorf("weights of type %q are not supported, want float or int", w.Type)
	}
	switch {
	case w.Strategy == "channel" || w.Strategy == "tensor":
		return q, nil
	case w.Strategy == "block" && q.DType == compute.FP8 && len(w.Block) > 0:
		return q, q.setBlock("block_structure", w.Block)
	}
	return nil, fmt.Errorf("weights with strategy %q are not supported, want channel or tensor", w.Strategy)
}

// names8 are the formats of 8 bits in safetensors.
var names8 = map[compute.DType]string{compute.FP8: "F8_E4M3", compute.INT8: "I8"}

// scales returns the scales of a matrix: one for each row, or one for each block of it.
func (c *Checkpoint) scales(info safetensors.Info, rows, cols int) ([]float32, error) {
	q, suffix := c.Config.Quantisation, "_scale"
	var want [][]int
	if q.Block != [2]int{} {
		want = [][]int{{blocks(rows, q.Block[0]), blocks(cols, q.Block[1])}}
		suffix = "_scale_inv"
		if _, ok := c.weights.Lookup(info.Name + suffix); !ok {
			suffix = "_scale" // compressed-tensors' name for blocks
		}
	} else {
		want = [][]int{{rows, 1}, {rows}, {1}, {1, 1}, {}}
	}
	name := info.Name + suffix
	at, ok := c.weights.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("%s: tensor %q is %s, but its scales, %q, are missing", info.File, info.Name,
			info.DType, name)
	}
	fits := false
	for _, shape := range want {
		fits = fits || equal(at.Shape, shape)
	}
	if !fits {
		return nil, fmt.Errorf("%s: tensor %q has shape %v, want %v", at.File, name, at.Shape, want[0])
	}
	if zero := info.Name + "_zero_point"; c.has(zero) {
		return nil, fmt.Errorf("%s: tensor %q: zero points are not supported", info.File, zero)
	}
	t, err := c.weights.Flat(name)
	if err != nil {
		return nil, err
	}
	values := safetensors.Floats(t)
	for i, v := range values {
		if !(v > 0) || math.IsInf(float64(v), 0) {
			return nil, fmt.Errorf("%s: tensor %q: scale %d is %v, want a positive number", at.File, name, i, v)
		}
	}
	for q.Block == [2]int{} && len(values) < rows {
		values = append(values, values[0])
	}
	return values, nil
}

func equal(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func blocks(n, of int) int { return (n + of - 1) / of }

func (c *Checkpoint) has(name string) bool {
	_, ok := c.weights.Lookup(name)
	return ok
}

// stored8 reports whether a matrix is stored in 8 bits.
func (c *Checkpoint) stored8(info safetensors.Info) bool {
	return c.Config.Quantisation != nil && info.DType == names8[c.Config.Quantisation.DType]
}

// matrix is tensor for a matrix of products, which may be stored in 8 bits. Numbers of 8 bits with a scale for each row
// stay as they are if asked for; everything else is expanded to the format of products.
func (c *Checkpoint) matrix(name string, rows, cols int, stored bool) (t compute.Tensor, full string) {
	info, ok := c.lookup(name)
	if c.err != nil || !ok || !c.stored8(info) {
		return c.tensor(name, rows, cols)
	}
	if !equal(info.Shape, []int{rows, cols}) {
		c.err = fmt.Errorf("%s: tensor %q has shape %v, want %v", info.File, info.Name, info.Shape, []int{rows, cols})
		return t, ""
	}
	var scales []float32
	if scales, c.err = c.scales(info, rows, cols); c.err != nil {
		return t, ""
	}
	data, err := c.weights.Raw(info.Name)
	if err != nil {
		c.err = err
		return t, ""
	}
	q := c.Config.Quantisation
	if stored && q.DType == c.eight && q.Block == [2]int{} {
		t = compute.Tensor{DType: q.DType, Rows: rows, Cols: cols, Data: data, Scales: scales}
		if i := notNumber(q.DType, data); i >= 0 {
			c.err = fmt.Errorf("%s: tensor %q: value %d of row %d is no number", info.File, info.Name, i%cols, i/cols)
		}
		return t, info.Name
	}
	c.expanded()
	t = compute.Tensor{DType: c.DType, Rows: rows, Cols: cols, Data: make([]byte, rows*cols*c.DType.Size())}
	if c.err = expand(t, data, q, scales); c.err != nil {
		c.err = fmt.Errorf("%s: tensor %q: %w", info.File, info.Name, c.err)
	}
	return t, info.Name
}

// notNumber returns where data has a code that is no number, or −1.
func notNumber(dt compute.DType, data []byte) int {
	if dt == compute.FP8 {
		for i, b := range data {
			if b&0x7f == 0x7f {
				return i
			}
		}
	}
	return -1
}

// expanded warns, once, that weights of 8 bits take the memory and time of others, or are rounded again.
func (c *Checkpoint) expanded() {
	if c.warned || c.warn == nil {
		return
	}
	c.warned = true
	q := c.Config.Quantisation
	if c.eight == q.DType {
		c.warn(fmt.Sprintf("%s weights with scales of blocks are rounded again, with one scale for each output", q.DType))
		return
	}
	c.warn(fmt.Sprintf("%s weights are expanded to %s: %s does not compute in them", q.DType, c.DType, c.Device.Name()))
}

// expand sets t to the values of data times their scales, on all cores.
func expand(t compute.Tensor, data []byte, q *Quantisation, scales []float32) error {
	const each = 64 // rows
	tasks := blocks(t.Rows, each)
	errs := make([]error, tasks)
	next := make(chan int, tasks)
	for i := range tasks {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	for range min(tasks, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			row := make([]float32, t.Cols)
			for i := range next {
				for r := i * each; r < min((i+1)*each, t.Rows) && errs[i] == nil; r++ {
					errs[i] = expandRow(t, data, q, scales, r, row)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func expandRow(t compute.Tensor, data []byte, q *Quantisation, scales []float32, r int, row []float32) error {
	scale := func(int) float32 { return scales[r] }
	if q.Block != [2]int{} {
		of := scales[r/q.Block[0]*blocks(t.Cols, q.Block[1]):]
		scale = func(col int) float32 { return of[col/q.Block[1]] }
	}
	for col, b := range data[r*t.Cols : (r+1)*t.Cols] {
		v := float32(int8(b))
		if q.DType == compute.FP8 {
			if b&0x7f == 0x7f {
				return fmt.Errorf("value %d of row %d is no number", col, r)
			}
			v = e4m3[b]
		}
		row[col] = v * scale(col)
	}
	size := t.Cols * t.DType.Size()
	safetensors.Encode(t.Data[r*size:r*size], t.DType, row...)
	return nil
}

// e4m3 has the numbers of FP8: 4 bits of exponent with bias 7, 3 of mantissa.
var e4m3 = func() (out [256]float32) {
	for b := range out {
		exp, frac := b>>3&15, float64(b&7)/8
		v := math.Ldexp(1+frac, exp-7)
		if exp == 0 {
			v = math.Ldexp(frac, -6)
		}
		if b >= 128 {
			v = -v
		}
		out[b] = float32(v)
	}
	return out
}()

// chooseWeights decides in what products are computed.
func (c *Checkpoint) chooseWeights(name, dtype string) error {
	quantiser, _ := c.Device.(compute.Quantiser)
	can := func(dt compute.DType) bool { return quantiser != nil && quantiser.Quantises(dt) }
	q := c.Config.Quantisation
	switch name {
	case "", "auto":
		if q != nil && q.Activations && can(q.DType) && (q.DType == compute.INT8 || dtype != "f32") {
			c.eight, c.asStored = q.DType, true
		}
	case "bf16":
	case "int8":
		if !can(compute.INT8) {
			return fmt.Errorf("weights: int8 is for CPUs, and this is %s: leave weights out", c.Device.Name())
		}
		c.eight = compute.INT8
	case "fp8":
		switch {
		case can(compute.FP8) && dtype == "f32":
			return errors.New("weights: fp8 computes beside bf16, and dtype is f32: leave dtype out")
		case can(compute.FP8):
			c.eight = compute.FP8
		case q == nil || q.DType != compute.FP8:
			return fmt.Errorf("weights: fp8 is not available on %s, but on GPUs from Ada on: use int8 on a CPU, bf16 elsewhere",
				c.Device.Name())
		}
	default:
		return fmt.Errorf("weights %q is unknown, want auto, bf16, int8 or fp8", name)
	}
	if c.eight == compute.FP8 {
		c.DType = compute.BF16 // of what is not rounded
	}
	return nil
}

// format returns the format in which the product of parts computes, and whether numbers of 8 bits are taken as they
// are.
func (c *Checkpoint) format(parts []Part) (dt compute.DType, stored bool) {
	q := c.Config.Quantisation
	if c.eight == compute.F32 || c.keeps(parts) {
		return c.DType, false
	}
	if !c.asStored {
		return c.eight, q != nil && q.Activations && q.DType == c.eight
	}
	for _, p := range parts {
		if info, ok := c.lookup(p.Name); !ok || !c.stored8(info) {
			return c.DType, false
		}
	}
	return c.eight, true
}

// chooseKept takes patterns of matrices that compute in DType.
func (c *Checkpoint) chooseKept(patterns []string) error {
	for _, text := range patterns {
		p, err := regexp.Compile(text)
		if err != nil {
			return fmt.Errorf("keep %q: %w", text, err)
		}
		isMatrix := func(name string) bool { return p.MatchString(name) && strings.HasSuffix(name, "_proj.weight") }
		if !slices.ContainsFunc(c.weights.Names(), isMatrix) {
			return fmt.Errorf("keep %q matches no matrix of a layer, such as model.layers.0.mlp.down_proj.weight", text)
		}
		c.keep = append(c.keep, p)
	}
	return nil
}

// keeps reports whether a pattern matches one of the parts.
func (c *Checkpoint) keeps(parts []Part) bool {
	for _, part := range parts {
		info, _ := c.lookup(part.Name)
		for _, p := range c.keep {
			if p.MatchString(info.Name) {
				return true
			}
		}
	}
	return false
}
