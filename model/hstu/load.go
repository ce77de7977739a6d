package hstu

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"grebe/compute"
	"grebe/internal/offheap"
	"grebe/model/safetensors"
)

// Names of tensors: FORMAT.md.
const (
	tables     = "_embedding_collection.embeddings."
	transducer = "_hstu_transducer."
	layerNames = transducer + "_stu_module._stu_layers."
	inputs     = transducer + "_input_preprocessor."
	positional = transducer + "_positional_encoder."
	outputs    = transducer + "_output_postprocessor."
)

// loader reads a checkpoint and keeps the first error.
type loader struct {
	cfg         *Config
	dev         compute.Device
	dt          compute.DType
	set         *safetensors.Set
	sources     map[string]RowSource
	held        int64
	ctx         context.Context // of the loading
	progress    func(done, total int64)
	warn        func(text string) // nil: nobody is told
	done, total int64
	err         error
}

func (l *loader) fail(err error) {
	if l.err == nil && err != nil {
		l.err = err
	}
}

func (l *loader) chooseDType(name string) (compute.DType, error) {
	switch name {
	case "f32":
		return compute.F32, nil
	case "bf16":
		return compute.BF16, nil
	case "", "auto":
		if info, _ := l.set.Lookup(layerNames + "0._uvqk_weight"); info.DType == "BF16" {
			return compute.BF16, nil
		}
		return compute.F32, nil
	}
	return 0, fmt.Errorf("dtype %q is unknown, want auto, f32 or bf16", name)
}

// tensor returns a view of a tensor of the given shape.
func (l *loader) tensor(name string, shape ...int) compute.Tensor {
	if l.err == nil {
		l.err = l.ctx.Err()
	}
	if l.err != nil {
		return compute.Tensor{}
	}
	info, ok := l.set.Lookup(name)
	if !ok {
		l.fail(fmt.Errorf("%s: tensor %q is missing, want shape %v", strings.Join(l.set.Files(), ", "), name, shape))
		return compute.Tensor{}
	}
	if !slices.Equal(info.Shape, shape) {
		l.fail(fmt.Errorf("%s: tensor %q has shape %v, want %v", info.File, name, info.Shape, shape))
		return compute.Tensor{}
	}
	t, err := l.set.Flat(name)
	if len(shape) == 2 {
		t.Rows, t.Cols = shape[0], shape[1]
	}
	if err != nil {
		l.fail(err)
	}
	l.done += int64(len(t.Data))
	if l.progress != nil {
		l.progress(l.done, l.total)
	}
	return t
}

// floats returns the values of a tensor. One that is infinite fails: a sigmoid behind it would make a number of it
// again, and scores that look right.
func (l *loader) floats(name string, shape ...int) []float32 {
	t := l.tensor(name, shape...)
	if l.err != nil {
		return nil
	}
	values := safetensors.Floats(t)
	for i, v := range values {
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			l.fail(fmt.Errorf("tensor %q: value %d is %v", name, i, v))
			return nil
		}
	}
	return values
}

func tensorF32(values []float32, rows, cols int) compute.Tensor {
	return compute.Tensor{DType: compute.F32, Rows: rows, Cols: cols,
		Data: safetensors.Encode(nil, compute.F32, values...)}
}

// vector puts a vector on the device.
func (l *loader) vector(values []float32) compute.Vector {
	if l.err != nil {
		return nil
	}
	v, err := l.dev.Vector(tensorF32(values, 1, len(values)))
	if err != nil {
		l.fail(err)
		return nil
	}
	l.held += 4 * int64(len(values))
	return v
}

// table puts a matrix whose rows are summed on the device.
func (l *loader) table(t compute.Tensor) compute.Table {
	if l.err != nil {
		return nil
	}
	table, err := l.dev.Table(t)
	if err != nil {
		l.fail(err)
		return nil
	}
	if n := table.Bytes(); n > 0 {
		l.held += n
	} else {
		l.held += int64(len(t.Data))
	}
	return table
}

// load fills the model in.
func (l *loader) load(m *Model) {
	c := l.cfg
	m.dt = l.dt
	m.shape = compute.Shape{
		Layers: c.Layers, Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.Heads, HeadDim: c.ValueDim, Eps: 1e-6, KV: l.dt,
		Pointwise: &compute.Pointwise{Alpha: float32(c.Alpha), Scale: 1, Window: c.Window, Context: c.Context},
	}
	if c.ScaleLength > 0 {
		m.shape.Pointwise.Scale = 1 / float32(c.ScaleLength)
	}
	m.scale = 1
	if c.Positions != None || c.Times != None {
		m.scale = float32(math.Sqrt(float64(c.Hidden)))
	}
	l.loadInputs(m)
	if l.err == nil {
		l.fail(m.checkSources(l.sources))
	}
	for i := 0; i < c.Layers && l.err == nil; i++ {
		m.layers = append(m.layers, l.layer(fmt.Sprintf("%s%d.", layerNames, i)))
	}
	if c.ItemMLP > 0 {
		in := c.TableDim
		for _, f := range c.Content {
			if f.ItemMLP {
				in += f.Dim
			}
		}
		m.itemMLP = l.mlp("_item_embedding_mlp.", in, c.ItemMLP, c.Hidden, true)
	}
	m.post = l.postprocessor()
	if len(c.Tasks) > 0 {
		m.predict = l.predictor()
	}
	if c.Retrieval && l.err == nil {
		l.index(m)
	}
	m.held = l.held
}

// index makes what items are retrieved from.
func (l *loader) index(m *Model) {
	var err error
	var bytes int64
	if m.content.item.source != nil {
		if m.live, err = newLive(l.ctx, l.dev, m, l.warn); err == nil {
			bytes = m.live.now.Load().base.bytes
		}
	} else {
		m.index, err = newIndex(l.dev, m, l.cfg.Items, func(first int, to []float32) error {
			return m.readVectors(first, to, m.content.item.gather)
		})
		if err == nil {
			bytes = m.index.bytes
		}
	}
	l.fail(err)
	l.held += bytes
}

// loadInputs makes the tables that rows are summed from.
func (l *loader) loadInputs(m *Model) {
	c := l.cfg
	byName := map[string]*table{}
	m.content.item = l.embeddings(byName, c.ItemTable, c.Items, c.TableDim)
	l.contentFeatures(m, byName)
	if c.Preprocessor > 0 {
		l.contentMLP(m)
	} else {
		l.summed(m)
	}
	if len(c.ActionWeights) > 0 {
		m.acts = l.actions()
	}
	if len(c.Features) > 0 {
		l.contexts(m, byName)
	}
	if c.Positions != None {
		m.positions = l.table(l.tensor(positional+"_position_embeddings_weight", c.PositionBuckets, c.Hidden))
	}
	if c.Times != None {
		m.times = l.table(l.tensor(positional+"_timestamp_embeddings_weight", c.TimeBuckets+1, c.Hidden))
	}
}

// blockRows is how many rows are computed at a time.
const blockRows = 4096

// computed makes a table of n rows that fill computes, block by block, in the products' format.
func (l *loader) computed(m *Model, n int, fill func(first int, dst []float32) error) compute.Table {
	if l.err != nil {
		return nil
	}
	width := l.cfg.Hidden * l.dt.Size()
	block, err := offheap.Alloc(n * width)
	if err != nil {
		l.fail(fmt.Errorf("a table of %d rows: %w", n, err))
		return nil
	}
	m.owned = append(m.owned, block)
	rows := make([]float32, blockRows*l.cfg.Hidden)
	for first := 0; first < n; first += blockRows {
		part := rows[:min(blockRows, n-first)*l.cfg.Hidden]
		if err := fill(first, part); err != nil {
			l.fail(err)
			return nil
		}
		safetensors.Encode(block.Bytes[first*width:first*width], l.dt, part...)
	}
	return l.table(compute.Tensor{DType: l.dt, Rows: n, Cols: l.cfg.Hidden, Data: block.Bytes[: n*width : n*width]})
}

// rowsOf returns n rows of t as float32.
func rowsOf(t compute.Tensor, first, n int) []float32 {
	size := t.Cols * t.DType.Size()
	t.Data, t.Rows = t.Data[first*size:(first+n)*size], n
	return safetensors.Floats(t)
}

// embeddings makes a table of the model, each once. The checkpoint may lack it if its rows come from elsewhere.
func (l *loader) embeddings(byName map[string]*table, name string, rows, dim int) *table {
	if t := byName[name]; t != nil {
		return t
	}
	t := &table{name: name, rows: rows, dim: dim, source: l.sources[name]}
	if byName[name] = t; t.source == nil {
		t.tensor = l.tensor(tables+name+".weight", rows, dim)
	}
	return t
}

// contentFeatures makes the tables beside the items'.
func (l *loader) contentFeatures(m *Model, byName map[string]*table) {
	c := l.cfg
	for i := range c.Content {
		f := feature{ContentFeature: &c.Content[i], table: l.embeddings(byName, c.Content[i].Table, c.Content[i].Rows,
			c.Content[i].Dim)}
		if f.Target {
			f.dummy = l.floats(inputs+"_content_encoder._target_enrich_dummy_embeddings."+f.Name, 1, f.Dim)
		}
		m.content.features = append(m.content.features, f)
	}
}

// contentMLP reads the MLP of content, and applies it to all items where nothing else goes into it.
func (l *loader) contentMLP(m *Model) {
	c := l.cfg
	in := c.TableDim
	for _, f := range c.Content {
		in += f.Dim
	}
	prefix := inputs + "_content_embedding_mlp."
	content := l.mlp(l.either(prefix+"_mlp.", prefix), in, c.Preprocessor, c.Hidden, true)
	if m.content.mlp = content; len(c.Content) > 0 || m.content.item.source != nil {
		return
	}
	m.content.ready = l.computed(m, c.Items, func(first int, dst []float32) error {
		out, err := content.apply(rowsOf(m.content.item.tensor, first, len(dst)/c.Hidden))
		copy(dst, out)
		return err
	})
}

// either returns the first prefix if the checkpoint has an MLP there: Meta's code has it in a module of its own where
// it concatenates features.
func (l *loader) either(first, second string) string {
	if _, ok := l.set.Lookup(first + "0.weight"); ok {
		return first
	}
	return second
}

// summed puts the tables of the checkpoint whose rows are summed on the device.
func (l *loader) summed(m *Model) {
	put := func(t *table) {
		if t.source == nil && t.onDevice == nil {
			t.onDevice = l.table(t.tensor)
		}
	}
	put(m.content.item)
	for i := range m.content.features {
		f := &m.content.features[i]
		if put(f.table); f.Target {
			f.sums = l.table(tensorF32(f.dummy, 1, f.Dim))
		}
	}
}

// mlp reads Linear, SwishLayerNorm, Linear and, with last, LayerNorm.
func (l *loader) mlp(prefix string, in, hidden, out int, last bool) *mlp {
	m := &mlp{
		first:  l.linear(prefix+"0.", in, hidden),
		swish:  l.norm(prefix+"1.", hidden),
		second: l.linear(prefix+"2.", hidden, out),
	}
	if last {
		m.last = l.norm(prefix+"3.", out)
	}
	return m
}

func (l *loader) linear(prefix string, in, out int) *linear {
	weights, bias := l.floats(prefix+"weight", out, in), l.floats(prefix+"bias", out)
	if l.err != nil {
		return nil
	}
	m, err := newLinear(l.dev, weights, out, in, bias)
	if err != nil {
		l.fail(fmt.Errorf("%sweight: %w", prefix, err))
		return nil
	}
	l.held += 4 * int64(out*in+out)
	return m
}

func (l *loader) norm(prefix string, n int) *norm {
	return &norm{gain: l.floats(prefix+"weight", n), shift: l.floats(prefix+"bias", n)}
}

// actions makes the table of what sets of actions add, the candidate's last.
func (l *loader) actions() compute.Table {
	c := l.cfg
	k, dim, prefix := len(c.ActionWeights), c.ActionDim, inputs+"_action_encoder."
	if c.Preprocessor == 0 {
		dim = c.Hidden
	}
	types := l.floats(prefix+"_action_embedding_table", k, dim)
	width := k * dim
	if c.Preprocessor == 0 {
		width = dim
	}
	target := l.floats(prefix+"_target_action_embedding_table", 1, width)
	if l.err != nil {
		return nil
	}
	rows := make([]float32, 0, c.actions()*width)
	for set := range 1 << k {
		row := make([]float32, width)
		for i := range k {
			if set>>i&1 == 0 {
				continue
			}
			for d := range dim {
				row[(i*dim+d)%width] += types[i*dim+d] // side by side, or with one width on top of each other
			}
		}
		rows = append(rows, row...)
	}
	rows = append(rows, target...)
	if c.Preprocessor > 0 {
		prefix := inputs + "_action_embedding_mlp."
		m := l.mlp(l.either(prefix+"_mlp.", prefix), width, c.Preprocessor, c.Hidden, true)
		if l.err != nil {
			return nil
		}
		var err error
		if rows, err = m.apply(rows); err != nil {
			l.fail(err)
			return nil
		}
	}
	return l.table(tensorF32(rows, c.actions(), c.Hidden))
}

// layer packs the weights of a layer. Queries and keys are padded with zeros to the width of values.
func (l *loader) layer(prefix string) (w compute.STUWeights) {
	c := l.cfg
	u := c.Heads * c.ValueDim
	qk := c.Heads * c.QKDim
	all := 2*u + 2*qk
	uvqk := transposed(l.floats(prefix+"_uvqk_weight", c.Hidden, all), c.Hidden, all)
	bias := l.floats(prefix+"_uvqk_beta", all)
	out := transposed(l.floats(prefix+"_output_weight", 3*u, c.Hidden), 3*u, c.Hidden)
	norms := u
	if c.GroupNorm {
		norms = c.Heads
	}
	gain, shift := l.floats(prefix+"_output_norm_weight", norms), l.floats(prefix+"_output_norm_bias", norms)
	w.Norm = l.vector(l.floats(prefix+"_input_norm_weight", c.Hidden))
	w.NormBias = l.vector(l.floats(prefix+"_input_norm_bias", c.Hidden))
	if l.err != nil {
		return w
	}
	w.UVQK = l.packed(slices.Concat(uvqk[:2*u*c.Hidden], l.padded(uvqk[2*u*c.Hidden:], c.Hidden)), 4*u, c.Hidden)
	w.UVQKBias = l.vector(slices.Concat(bias[:2*u], l.padded(bias[2*u:], 1)))
	w.OutNorm, w.OutNormBias, w.PerHead = l.vector(gain), l.vector(shift), c.GroupNorm
	w.Out = l.packed(out, c.Hidden, 3*u)
	for _, name := range []string{"_uvqk_weight", "_output_weight"} {
		l.set.Release(prefix + name)
	}
	return w
}

// packed packs a matrix in the products' format.
func (l *loader) packed(values []float32, rows, cols int) compute.Linear {
	if l.err != nil {
		return nil
	}
	p, err := l.dev.Linear(l.dt, tensorF32(values, rows, cols))
	if err != nil {
		l.fail(err)
		return nil
	}
	l.held += p.Bytes()
	return p
}

// padded widens the heads of q and k, rows of so many values, from QKDim to ValueDim.
func (l *loader) padded(rows []float32, cols int) []float32 {
	c := l.cfg
	out := make([]float32, 2*c.Heads*c.ValueDim*cols)
	for h := range 2 * c.Heads {
		copy(out[h*c.ValueDim*cols:], rows[h*c.QKDim*cols:(h+1)*c.QKDim*cols])
	}
	return out
}

// transposed returns a matrix [rows][cols] as [cols][rows]; nil stays nil.
func transposed(m []float32, rows, cols int) []float32 {
	if m == nil {
		return nil
	}
	out := make([]float32, len(m))
	for i := range rows {
		for j := range cols {
			out[j*rows+i] = m[i*cols+j]
		}
	}
	return out
}
