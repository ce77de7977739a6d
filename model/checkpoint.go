package model

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	"grebe/compute"
	"grebe/internal/human"
	"grebe/model/safetensors"
)

// Embedding is the name of the tensor whose format counts as the checkpoint's.
const Embedding = "embed_tokens.weight"

// Checkpoint is what an architecture builds its model from. Its methods check the shape of each
// tensor they are asked for and keep the first error, which Err returns; after it they return nil,
// so that a model can be written down without a test after each tensor.
type Checkpoint struct {
	Config *Config
	Device compute.Device
	DType  compute.DType // of products
	KV     compute.DType // of K and V

	// eight is the format of 8 bits that products compute in: INT8 or FP8; F32, where there is none. With asStored
	// they do only where matrices are stored in that.
	eight    compute.DType
	asStored bool
	keep     []*regexp.Regexp // matrices that compute in DType
	warn     func(string)
	warned   bool

	ctx         context.Context // of the loading
	weights     *safetensors.Set
	progress    func(done, total int64)
	done, total int64
	held        int64
	err         error
}

// Err returns the first failure.
func (c *Checkpoint) Err() error { return c.err }

// Held returns the memory held by what was loaded so far.
func (c *Checkpoint) Held() int64 { return c.held }

// Bytes returns the size of all tensors in the checkpoint.
func (c *Checkpoint) Bytes() int64 { return c.weights.Bytes() }

// Close unmaps the checkpoint.
func (c *Checkpoint) Close() error { return c.weights.Close() }

func (c *Checkpoint) chooseDType(name string) (compute.DType, error) {
	switch name {
	case "f32":
		return compute.F32, nil
	case "bf16":
		return compute.BF16, nil
	case "", "auto":
		info, _ := c.lookup(Embedding)
		if info.DType == "BF16" {
			return compute.BF16, nil
		}
		return compute.F32, nil
	}
	return 0, fmt.Errorf("dtype %q is unknown, want auto, f32 or bf16", name)
}

func (c *Checkpoint) chooseKV(name string) (compute.DType, error) {
	switch name {
	case "", "auto":
		return c.DType, nil
	case "f32":
		return compute.F32, nil
	case "bf16":
		return compute.BF16, nil
	case "fp8":
		return compute.FP8, nil
	}
	return 0, fmt.Errorf("kv_dtype %q is unknown, want auto, f32, bf16 or fp8", name)
}

// lookup finds a tensor by its name with or without the prefix that checkpoints of the bare decoder lack.
func (c *Checkpoint) lookup(name string) (safetensors.Info, bool) {
	if info, ok := c.weights.Lookup("model." + name); ok {
		return info, true
	}
	return c.weights.Lookup(name)
}

// tensor returns a view of a tensor and the name under which the file has it.
func (c *Checkpoint) tensor(name string, shape ...int) (t compute.Tensor, full string) {
	if c.err != nil {
		return t, ""
	}
	info, ok := c.lookup(name)
	if !ok {
		c.err = fmt.Errorf("%s: tensor %q is missing, want shape %v", c.where(), name, shape)
		return t, ""
	}
	if c.stored8(info) {
		c.err = fmt.Errorf("%s: tensor %q is %s: only matrices of the layers may be stored in 8 bits", info.File,
			info.Name, info.DType)
		return t, ""
	}
	if !slices.Equal(info.Shape, shape) {
		c.err = fmt.Errorf("%s: tensor %q has shape %v, want %v", info.File, info.Name, info.Shape, shape)
		return t, ""
	}
	t, c.err = c.weights.Tensor(info.Name)
	return t, info.Name
}

// where names the files that a missing tensor could have been in.
func (c *Checkpoint) where() string {
	files := c.weights.Files()
	if len(files) == 1 {
		return files[0]
	}
	return files[0] + " and " + human.Count(len(files)-1, "more file")
}

// Part names a matrix of a checkpoint that has Rows rows.
type Part struct {
	Name string
	Rows int
}

// Linear packs matrices of cols columns as one, row after row.
func (c *Checkpoint) Linear(cols int, parts ...Part) compute.Linear {
	dt, stored := c.format(parts)
	tensors, names := c.tensors(cols, parts, stored)
	if c.err != nil {
		return nil
	}
	l, err := c.Device.Linear(dt, tensors...)
	return c.packed(l, err, tensors, names)
}

// GateUp packs the two matrices of a gated feed-forward layer.
func (c *Checkpoint) GateUp(cols int, gate, up Part) compute.Linear {
	dt, stored := c.format([]Part{gate, up})
	tensors, names := c.tensors(cols, []Part{gate, up}, stored)
	if c.err != nil {
		return nil
	}
	l, err := c.Device.GateUp(dt, tensors[0], tensors[1])
	return c.packed(l, err, tensors, names)
}

func (c *Checkpoint) tensors(cols int, parts []Part, stored bool) (tensors []compute.Tensor, names []string) {
	if c.err == nil {
		c.err = c.ctx.Err()
	}
	for _, p := range parts {
		t, name := c.matrix(p.Name, p.Rows, cols, stored)
		tensors, names = append(tensors, t), append(names, name)
	}
	return tensors, names
}

// packed counts a packed matrix and gives back the pages it was read from.
func (c *Checkpoint) packed(l compute.Linear, err error, from []compute.Tensor, names []string) compute.Linear {
	if err != nil {
		c.err = fmt.Errorf("pack %q: %w", names, err)
		return nil
	}
	c.held += l.Bytes()
	for i, name := range names {
		c.weights.Release(name)
		c.loaded(from[i])
	}
	return l
}

// Pick packs some rows of a matrix, in the given order, as one of its own. It may be called after
// loading, as long as the checkpoint is open.
func (c *Checkpoint) Pick(cols int, p Part, rows []int32) (compute.Linear, error) {
	t, _ := c.tensor(p.Name, p.Rows, cols)
	if c.err != nil {
		return nil, c.err
	}
	size := t.Cols * t.DType.Size()
	picked := compute.Tensor{DType: t.DType, Rows: len(rows), Cols: t.Cols, Data: make([]byte, 0, len(rows)*size)}
	for _, r := range rows {
		if r < 0 || int(r) >= t.Rows {
			return nil, fmt.Errorf("model: row %d of %q, which has %d", r, p.Name, t.Rows)
		}
		picked.Data = append(picked.Data, t.Data[int(r)*size:][:size]...)
	}
	l, err := c.Device.Linear(c.DType, picked)
	if err != nil {
		return nil, fmt.Errorf("model: pack %d rows of %q: %w", len(rows), p.Name, err)
	}
	return l, nil
}

// Finite fails where a value of a vector, of no columns, or of a matrix is infinite or no number.
func (c *Checkpoint) Finite(cols int, p Part) {
	shape := []int{p.Rows, cols}
	if cols == 0 {
		shape = shape[:1]
	}
	if info, ok := c.lookup(p.Name); ok && c.stored8(info) {
		return // has no infinity; what is no number is found when it is packed
	}
	t, name := c.tensor(p.Name, shape...)
	if c.err != nil {
		return
	}
	if i := safetensors.NotFinite(t); i >= 0 {
		c.err = fmt.Errorf("%s: tensor %q: value %d is infinite or no number", c.where(), name, i)
	}
}

// Vector loads the concatenation of vectors.
func (c *Checkpoint) Vector(parts ...Part) compute.Vector {
	var values []byte
	n := 0
	for _, p := range parts {
		t, _ := c.tensor(p.Name, p.Rows)
		if c.err != nil {
			return nil
		}
		values = safetensors.Encode(values, compute.F32, safetensors.Floats(t)...)
		n += p.Rows
		c.loaded(t)
	}
	v, err := c.Device.Vector(compute.Tensor{DType: compute.F32, Rows: 1, Cols: n, Data: values})
	if err != nil {
		c.err = fmt.Errorf("load %v: %w", parts, err)
		return nil
	}
	c.held += int64(len(values))
	return v
}

// Table loads a matrix whose single rows are used. The device may read it in place.
func (c *Checkpoint) Table(cols int, p Part) compute.Table {
	t, _ := c.tensor(p.Name, p.Rows, cols)
	if c.err != nil {
		return nil
	}
	table, err := c.Device.Table(t)
	if err != nil {
		c.err = fmt.Errorf("load %q: %w", p.Name, err)
		return nil
	}
	if n := table.Bytes(); n > 0 {
		c.held += n
	} else {
		c.held += int64(len(t.Data))
	}
	c.loaded(t)
	return table
}

func (c *Checkpoint) loaded(t compute.Tensor) {
	c.done += int64(len(t.Data))
	if c.progress != nil {
		c.progress(c.done, c.total)
	}
}
