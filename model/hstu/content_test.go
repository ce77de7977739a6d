package hstu_test

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cpu"
	"grebe/compute/null"
	"grebe/compute/ref"
	"grebe/embed"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
	"grebe/model/safetensors"
	"grebe/plan"
)

const transducer = "_hstu_transducer."

// many is a model with tables for items, categories, creators and what a candidate alone has.
func many(mlps bool) hstutest.Spec {
	return hstutest.Spec{Hidden: 16, Layers: 2, Heads: 2, HeadDim: 8, Items: 40, MaxSeqLen: 64, Seed: 7,
		Change: func(c *hstu.Config) {
			c.Retrieval = false
			c.Content = []hstu.ContentFeature{
				{Name: "category", Table: "categories", Rows: 6, Dim: 16},
				{Name: "creator", Table: "creators", Rows: 9, Dim: 16},
				{Name: "second", Table: "categories", Rows: 6, Dim: 16},
				{Name: "campaign", Table: "campaigns", Rows: 5, Dim: 16, Target: true},
			}
			if mlps {
				c.TableDim, c.Preprocessor, c.ItemMLP = 12, 20, 18
				for i, dim := range []int{4, 8, 4, 6} {
					c.Content[i].Dim = dim
				}
				c.Content[1].ItemMLP, c.Content[3].ItemMLP = true, true
			}
		}}
}

// contextual is a model whose contextual rows see the history, with features and MLPs beside them.
func contextual() hstutest.Spec {
	s := many(true)
	change := s.Change
	s.Change = func(c *hstu.Config) {
		change(c)
		c.Features = []hstu.Feature{{Name: "user", Table: "users", Rows: 11, MaxLength: 1},
			{Name: "tags", Table: "tags", Rows: 7, MaxLength: 2, MinRows: 2}}
		c.Context = 3
	}
	return s
}

// visit is a random request.
type visit struct {
	history, candidates []int32 // content
	items, features     []int32 // of the candidates
}

func draw(m *hstu.Model, r *rand.Rand, events, candidates int) visit {
	c := m.Config()
	row := func(f *hstu.ContentFeature) int32 { return int32(r.IntN(f.Rows+1) - 1) }
	features := map[string][]int32{}
	for _, f := range c.Features {
		for range r.IntN(f.MaxLength + 1) {
			features[f.Name] = append(features[f.Name], int32(r.IntN(f.Rows)))
		}
	}
	context, err := m.Context(features, events+candidates)
	if err != nil {
		panic(err)
	}
	v := visit{history: m.AppendContext(nil, context)}
	for range events {
		v.history = m.AppendEvent(v.history, m.Event(int32(r.IntN(c.Items)), int32(r.IntN(8))), row)
	}
	width := 1 + len(c.Content)
	for range candidates {
		item := int32(r.IntN(c.Items))
		v.candidates = m.AppendCandidate(v.candidates, m.Candidate(item), row)
		v.items = append(v.items, item)
		v.features = append(v.features, v.candidates[len(v.candidates)-width+1:]...)
	}
	return v
}

// layout is the plan of a visit, user-first, and the segments of its candidates.
func (v *visit) layout(t *testing.T, m *hstu.Model) (p *plan.Plan, answers []int) {
	t.Helper()
	tokens := m.Identify(nil, v.history).Tokens()
	p = &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: tokens}}}
	for _, item := range v.items {
		answers = append(answers, len(p.Segments))
		p.Segments = append(p.Segments, plan.Segment{Kind: plan.Item, Tokens: []int32{m.Candidate(item)},
			Start: len(tokens), Sees: []int32{0}})
	}
	if err := m.Describe(p, 0, v.history, v.candidates); err != nil {
		t.Fatal(err)
	}
	if err := m.Annotate(p, 0, &hstu.Moment{}); err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(m.Vocab(), m.MaxPositions()); err != nil {
		t.Fatal(err)
	}
	return p, answers
}

// states runs a plan on a device with nothing cached.
func states(t *testing.T, m *hstu.Model, dev compute.Device, p *plan.Plan, segments []int) [][]float32 {
	t.Helper()
	b, shape := &compute.Batch{}, m.Shape()
	last := make([]int32, len(p.Segments))
	for i := range p.Segments {
		s := &p.Segments[i]
		block, err := dev.Memory().Alloc(shape.ChunkBytes(max(1, len(s.Tokens)), true))
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Memory().Free(block)
		b.Segments = append(b.Segments, compute.Segment{First: len(b.Tokens), Len: len(s.Tokens), Sees: s.Sees,
			Start: s.Start, Scale: s.Scale, Chunks: []compute.Chunk{block.Chunk(len(s.Tokens), true)}})
		for j, token := range s.Tokens {
			b.Tokens, b.Positions = append(b.Tokens, token), append(b.Positions, int32(s.Start+j))
		}
		b.Content = append(b.Content, s.Content...)
		last[i] = int32(len(b.Tokens) - 1)
	}
	var want []int32
	for _, s := range segments {
		want = append(want, last[s])
	}
	r, err := dev.Open(shape, len(b.Tokens))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := m.Forward(r, b, nil); err != nil {
		t.Fatal(err)
	}
	flat := make([]float32, len(want)*shape.Hidden)
	if err := m.Hidden(r, want, flat); err != nil {
		t.Fatal(err)
	}
	return slices.Collect(slices.Chunk(flat, shape.Hidden))
}

// plain computes FORMAT.md in float64 from the tensors of a checkpoint, row by row.
type plain struct {
	c   *hstu.Config
	set *safetensors.Set
}

func (x plain) tensor(name string) []float64 {
	t, err := x.set.Flat(name)
	if err != nil {
		panic(err)
	}
	var out []float64
	for _, v := range safetensors.Floats(t) {
		out = append(out, float64(v))
	}
	return out
}

func (x plain) row(table string, row int32, dim int) []float64 {
	if row < 0 {
		return make([]float64, dim)
	}
	return x.tensor("_embedding_collection.embeddings." + table + ".weight")[int(row)*dim:][:dim]
}

func layerNorm(v []float64, eps float64) []float64 {
	mean, square := 0.0, 0.0
	for _, a := range v {
		mean += a / float64(len(v))
	}
	for _, a := range v {
		square += (a - mean) * (a - mean) / float64(len(v))
	}
	out := make([]float64, len(v))
	for i, a := range v {
		out[i] = (a - mean) / math.Sqrt(square+eps)
	}
	return out
}

func (x plain) norm(v []float64, weight, bias string, eps float64) []float64 {
	out, w, b := layerNorm(v, eps), x.tensor(weight), x.tensor(bias)
	for i := range out {
		out[i] = out[i]*w[i] + b[i]
	}
	return out
}

func (x plain) linear(v []float64, prefix string) []float64 {
	w, out := x.tensor(prefix+"weight"), x.tensor(prefix+"bias")
	for i := range out {
		for j := range v {
			out[i] += w[i*len(v)+j] * v[j]
		}
	}
	return out
}

func silu(v float64) float64 { return v / (1 + math.Exp(-v)) }

func (x plain) mlp(v []float64, prefix string) []float64 {
	h := x.linear(v, prefix+"0.")
	for i, n := range x.norm(h, prefix+"1.weight", prefix+"1.bias", 1e-5) {
		h[i] *= 1 / (1 + math.Exp(-n))
	}
	return x.norm(x.linear(h, prefix+"2."), prefix+"3.weight", prefix+"3.bias", 1e-5)
}

// input returns the row that goes into the first layer for its content, at a position.
func (x plain) input(m *hstu.Model, content []int32, candidate bool, position int) []float64 {
	c, in := x.c, transducer+"_input_preprocessor."
	d := c.Hidden
	kinds := int32(1)<<len(c.ActionWeights) + 1
	sum := make([]float64, d)
	if events := int32(c.Items) * kinds; content[0] >= events {
		slot, first := 0, events
		for _, f := range c.Features {
			for range f.MaxLength {
				if row := content[0] - first - 1; content[0] >= first && row < int32(f.Rows) {
					weights := x.tensor(in + "_batched_contextual_linear_weights")[slot*c.TableDim*d:]
					copy(sum, x.tensor(in + "_batched_contextual_linear_bias")[slot*d:][:d])
					for i, v := range x.row(f.Table, row, c.TableDim) {
						for j := range d {
							sum[j] += v * weights[i*d+j]
						}
					}
				}
				slot, first = slot+1, first+int32(f.Rows)+1
			}
		}
	} else {
		item, act := content[0]/kinds, content[0]%kinds
		parts := [][]float64{x.row(c.ItemTable, item, c.TableDim)}
		for i, f := range c.Content {
			if f.Target && !candidate {
				parts = append(parts, x.tensor(in+"_content_encoder._target_enrich_dummy_embeddings."+f.Name))
			} else {
				parts = append(parts, x.row(f.Table, content[1+i], f.Dim))
			}
		}
		types, width := x.tensor(in+"_action_encoder._action_embedding_table"), d
		if c.Preprocessor > 0 {
			width = c.ActionDim
		}
		var action []float64
		for k := range c.ActionWeights {
			one := make([]float64, width)
			if act>>k&1 == 1 {
				copy(one, types[k*width:])
			}
			if c.Preprocessor > 0 || k == 0 {
				action = append(action, one...)
			} else {
				for i := range one {
					action[i] += one[i]
				}
			}
		}
		if act == kinds-1 {
			action = x.tensor(in + "_action_encoder._target_action_embedding_table")
		}
		if c.Preprocessor > 0 {
			parts = [][]float64{x.mlp(slices.Concat(parts...), in+"_content_embedding_mlp."),
				x.mlp(action, in+"_action_embedding_mlp.")}
		} else {
			parts = append(parts, action)
		}
		for _, p := range parts {
			for i := range sum {
				sum[i] += p[i]
			}
		}
	}
	at := x.tensor(transducer + "_positional_encoder._position_embeddings_weight")[position*d:]
	for i := range sum {
		sum[i] = math.Sqrt(float64(d))*sum[i] + at[i]
	}
	return sum
}

// states returns the states of a visit's candidates behind the last layer.
func (x plain) states(m *hstu.Model, v *visit) [][]float64 {
	c := x.c
	width := 1 + len(c.Content)
	n, k := len(v.history)/width, len(v.items)
	var rows [][]float64
	for i := range n {
		rows = append(rows, x.input(m, v.history[i*width:][:width], false, i))
	}
	for i := range k {
		rows = append(rows, x.input(m, v.candidates[i*width:][:width], true, n))
	}
	for l := range c.Layers {
		rows = x.layer(rows, n, fmt.Sprintf("%s_stu_module._stu_layers.%d.", transducer, l))
	}
	return rows[n:]
}

// layer is a layer without a window, over a history of n rows and candidates.
func (x plain) layer(rows [][]float64, n int, p string) [][]float64 {
	c := x.c
	d, v, a := c.Hidden, c.ValueDim, c.QKDim
	hv, ha := c.Heads*v, c.Heads*a
	weights, beta, out := x.tensor(p+"_uvqk_weight"), x.tensor(p+"_uvqk_beta"), x.tensor(p+"_output_weight")
	uvqk := make([][]float64, len(rows))
	for i, row := range rows {
		normed := x.norm(row, p+"_input_norm_weight", p+"_input_norm_bias", 1e-6)
		uvqk[i] = slices.Clone(beta)
		for j := range d {
			for o := range beta {
				uvqk[i][o] += normed[j] * weights[j*len(beta)+o]
			}
		}
	}
	result := make([][]float64, len(rows))
	for i := range rows {
		att := make([]float64, hv)
		for j := range rows {
			if sees := j == i || j < n && (j < i || i < c.Context); !sees {
				continue
			}
			for h := range c.Heads {
				s := 0.0
				for e := range a {
					s += uvqk[i][2*hv+h*a+e] * uvqk[j][2*hv+ha+h*a+e]
				}
				s = silu(c.Alpha*s) / float64(c.ScaleLength)
				for e := range v {
					att[h*v+e] += s * uvqk[j][hv+h*v+e]
				}
			}
		}
		normed := x.norm(att, p+"_output_norm_weight", p+"_output_norm_bias", 1e-6)
		var all []float64
		for e := range hv {
			all = append(all, silu(uvqk[i][e]))
		}
		all = append(all, att...)
		for e := range hv {
			all = append(all, silu(uvqk[i][e])*normed[e])
		}
		result[i] = slices.Clone(rows[i])
		for e := range all {
			for o := range d {
				result[i][o] += all[e] * out[e*d+o]
			}
		}
	}
	return result
}

// predict returns the tasks' logits for a candidate's state.
func (x plain) predict(state []float64, item int32, features []int32) []float64 {
	c := x.c
	own := x.row(c.ItemTable, item, c.TableDim)
	if c.ItemMLP > 0 {
		for i, f := range c.Content {
			if f.ItemMLP {
				own = append(own[:len(own):len(own)], x.row(f.Table, features[i], f.Dim)...)
			}
		}
		own = x.mlp(own, "_item_embedding_mlp.")
	}
	length := 0.0
	for _, v := range state {
		length += v * v
	}
	user := make([]float64, len(state))
	for i := range state {
		user[i] = state[i] / max(math.Sqrt(length), 1e-6) * own[i]
	}
	const prefix = "_multitask_module._prediction_module."
	h := x.linear(user, prefix+"0.")
	for i, n := range x.norm(h, prefix+"1.weight", prefix+"1.bias", 1e-5) {
		h[i] *= 1 / (1 + math.Exp(-n))
	}
	out := x.linear(h, prefix+"2.")
	for i := range out {
		out[i] = 1 / (1 + math.Exp(-out[i]))
	}
	return out
}

// sourced puts the tables of a checkpoint into stores.
func sourced(t *testing.T, set *safetensors.Set, names ...string) (map[string]hstu.RowSource, map[string]*embed.Table) {
	t.Helper()
	sources, all := map[string]hstu.RowSource{}, map[string]*embed.Table{}
	for _, name := range names {
		info, ok := set.Lookup("_embedding_collection.embeddings." + name + ".weight")
		if !ok {
			t.Fatalf("no table %s", name)
		}
		flat, err := set.Flat("_embedding_collection.embeddings." + name + ".weight")
		if err != nil {
			t.Fatal(err)
		}
		rows, dim := info.Shape[0], info.Shape[1]
		store := embed.NewMemory(rows, 4*dim)
		values := embed.Bytes(safetensors.Floats(flat))
		for row := range rows {
			if err := store.Put(t.Context(), []uint64{uint64(row)}, values[row*4*dim:][:4*dim]); err != nil {
				t.Fatal(err)
			}
		}
		if all[name], err = embed.NewTable(store, nil, embed.TableConfig{}); err != nil {
			t.Fatal(err)
		}
		sources[name] = hstu.FromTable(all[name])
	}
	return sources, all
}

func close64(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	for i := range want {
		if diff := math.Abs(float64(got[i]) - want[i]); !(diff <= 2e-4*max(1, math.Abs(want[i]))) {
			t.Fatalf("%s: value %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// Several tables give what a computation in float64 does, row by row: from the checkpoint, from stores, and some from
// each, which agree to the bit.
func TestManyTables(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	all := []string{"item_id", "categories", "creators", "campaigns"}
	for name, spec := range map[string]hstutest.Spec{"sums": many(false), "MLPs": many(true), "contexts": contextual()} {
		for device, dev := range map[string]compute.Device{"ref": ref.New(), "cpu": dev,
			"far": computetest.Far(dev, false)} {
			t.Run(name+" "+device, func(t *testing.T) {
				dir := t.TempDir()
				if err := hstutest.Write(dir, spec); err != nil {
					t.Fatal(err)
				}
				set, err := safetensors.Open(dir)
				if err != nil {
					t.Fatal(err)
				}
				defer set.Close()
				tables := all
				if name == "contexts" {
					tables = append(slices.Clone(all), "users", "tags")
				}
				var models []*hstu.Model
				for _, some := range [][]string{nil, tables, tables[:1], tables[1:]} {
					sources, _ := sourced(t, set, some...)
					m, err := hstu.OpenWith(dir, dev, model.Options{DType: "f32"}, sources)
					if err != nil {
						t.Fatal(err)
					}
					defer m.Close()
					models = append(models, m)
				}
				x := plain{models[0].Config(), set}
				r := rand.New(rand.NewPCG(1, 2))
				for _, size := range [][2]int{{1, 1}, {9, 3}, {30, 5}} {
					v := draw(models[0], r, size[0], size[1])
					want := x.states(models[0], &v)
					var first [][]float32
					var tasks [][]float32
					for i, m := range models {
						p, answers := v.layout(t, m)
						got := states(t, m, dev, p, answers)
						scored, err := m.Score(got, v.items, v.features, 0)
						if err != nil {
							t.Fatal(err)
						}
						if i == 0 {
							first = got
						}
						for j := range got {
							if i == 0 {
								tasks = append(tasks, scored[j].Tasks)
								close64(t, "state", got[j], want[j])
								close64(t, "tasks", scored[j].Tasks, x.predict(want[j], v.items[j], v.features[j*4:][:4]))
							}
							if !slices.Equal(got[j], first[j]) || !slices.Equal(scored[j].Tasks, tasks[j]) {
								t.Errorf("%d events: model %d gives candidate %d another state", size[0], i, j)
							}
						}
					}
				}
			})
		}
	}
}

// A row of each table is part of what is computed, and rows of tables that a store lacks are its default.
func TestEveryTableMatters(t *testing.T) {
	dir := t.TempDir()
	if err := hstutest.Write(dir, many(true)); err != nil {
		t.Fatal(err)
	}
	set, err := safetensors.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	sources, tables := sourced(t, set, "item_id", "categories", "creators", "campaigns")
	m, err := hstu.OpenWith(dir, ref.New(), model.Options{DType: "f32"}, sources)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	v := draw(m, rand.New(rand.NewPCG(3, 4)), 5, 1)
	copy(v.candidates[1:], []int32{1, 2, 3, 4})
	p, answers := v.layout(t, m)
	before := states(t, m, ref.New(), p, answers)
	for name, row := range map[string]int32{"item_id": v.items[0], "categories": 1, "creators": 2, "campaigns": 4} {
		if err := tables[name].Delete(t.Context(), []uint64{uint64(row)}); err != nil {
			t.Fatal(err)
		}
		after := states(t, m, ref.New(), p, answers)
		if slices.Equal(before[0], after[0]) {
			t.Errorf("row %d of table %s is gone, and nothing changes", row, name)
		}
		before = after
	}
	if m.Incomplete() != 0 {
		t.Errorf("%d times incomplete, but no store failed", m.Incomplete())
	}
}

// Histories that differ in any row have other tokens from a few rows before on, and those that begin alike have the
// same ones up to there.
func TestIdentity(t *testing.T) {
	dir := t.TempDir()
	if err := hstutest.Write(dir, many(true)); err != nil {
		t.Fatal(err)
	}
	m, err := hstu.Open(dir, ref.New(), model.Options{DType: "f32"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r := rand.New(rand.NewPCG(5, 6))
	v := draw(m, r, 30, 0)
	width, least := 5, m.LeastReused()
	all := m.Identify(nil, v.history).Tokens()
	seen := map[int32]bool{}
	for _, token := range all {
		if token < 0 || seen[token] {
			t.Fatalf("token %d twice, or negative", token)
		}
		seen[token] = true
	}
	for n := range 30 {
		got := m.Identify(nil, v.history[:n*width]).Tokens()
		if len(got) != n || !slices.Equal(got[:max(0, n-least+1)], all[:max(0, n-least+1)]) {
			t.Errorf("the first %d rows have tokens %v, of all %v", n, got, all)
		}
		for i := max(0, n-least+1); i < n; i++ {
			if got[i] == all[i] {
				t.Errorf("token %d of %d does not depend on what follows", i, n)
			}
		}
	}
	for at := range v.history {
		other := slices.Clone(v.history)
		other[at]++
		got, k := m.Identify(nil, other).Tokens(), at/width
		for i := range got {
			if (got[i] == all[i]) != (i < k-least+1) {
				t.Fatalf("number %d of row %d has changed: token %d is %d, and was %d", at%width, k, i, got[i], all[i])
			}
		}
	}
}

// An id is its row modulo the table's rows; texts are hashed.
func TestRowOf(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, c := range []struct {
		text string
		rows int
		want int32
	}{{"7", 10, 7}, {"17", 10, 7}, {"18446744073709551615", 10, 5}, {"toys", 1 << 30, 0}, {"", 1000, 0}} {
		got := hstu.RowOfText(c.text, c.rows)
		if c.want != 0 && got != c.want || got < 0 || int(got) >= c.rows {
			t.Errorf("%q of %d rows is row %d, want %d", c.text, c.rows, got, c.want)
		}
	}
	for range 10_000 { // as strconv and fnv have it
		text := make([]byte, r.IntN(22))
		for i := range text {
			text[i] = "0123456789+-_ a\xff"[r.IntN(10+r.IntN(7))]
		}
		h := fnv.New64a()
		h.Write(text)
		want := h.Sum64()
		if n, err := strconv.ParseUint(string(text), 10, 64); err == nil {
			want = n
		}
		if got := hstu.RowOfText(string(text), 1<<30); got != hstu.RowOf(want, 1<<30) {
			t.Fatalf("%q is row %d, want %d", text, got, hstu.RowOf(want, 1<<30))
		}
	}
	if a, b := hstu.RowOfText("toys", 1<<30), hstu.RowOfText("games", 1<<30); a == b {
		t.Errorf("two texts are row %d", a)
	}
	for number, want := range map[float64]int32{3: 3, 1013: 13, -1: -1, 0.5: -1, math.Inf(1): -1, 1 << 54: -1, 0: 0} {
		if got := hstu.RowOfNumber(number, 100); got != want && number != 1<<54 || number == 1<<54 && got != -1 {
			t.Errorf("%v is row %d, want %d", number, got, want)
		}
	}
	if got := hstu.RowOfNumber(math.NaN(), 100); got != -1 {
		t.Errorf("NaN is row %d", got)
	}
}

// Rows of a table in bf16 give what those of a checkpoint give whose rows are the nearest bf16 numbers.
func TestTablesInBF16(t *testing.T) {
	dir, rounded, from := t.TempDir(), t.TempDir(), many(true)
	from.DType = compute.BF16
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(hstutest.Write(dir, many(true)))
	must(hstutest.Write(rounded, from)) // all weights are rounded
	set, err := safetensors.Open(dir)
	must(err)
	defer set.Close()
	flat, err := set.Tensor("_embedding_collection.embeddings.creators.weight")
	must(err)
	tables, err := embed.OpenTables(filepath.Join(dir, "tables"), []embed.Spec{
		{Name: "makers", Store: "pebble", Dim: flat.Cols, Format: embed.BF16, Cache: 1 << 16}})
	must(err)
	defer tables.Close()
	keys := make([]uint64, flat.Rows)
	for i := range keys {
		keys[i] = uint64(i)
	}
	must(tables.Table("makers").PutFloats(t.Context(), keys, safetensors.Floats(flat)))
	dev := ref.New()
	of := func(sources map[string]hstu.RowSource) [][]float32 {
		m, err := hstu.OpenWith(rounded, dev, model.Options{DType: "f32"}, sources)
		must(err)
		defer m.Close()
		v := draw(m, rand.New(rand.NewPCG(3, 4)), 20, 3)
		p, answers := v.layout(t, m)
		return states(t, m, dev, p, answers)
	}
	want, got := of(nil), of(map[string]hstu.RowSource{"creators": hstu.FromTable(tables.Table("makers"))})
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("candidate %d differs", i)
		}
	}
}

// asked counts the rows that a source is asked for.
type asked struct {
	hstu.RowSource
	rows int
}

func (a *asked) Gather(rows []int32, out []float32) error {
	a.rows += len(rows)
	return a.RowSource.Gather(rows, out)
}

// A device that computes nothing is sent the rows of all tables, those of a batch once.
func TestNullDevice(t *testing.T) {
	dir := t.TempDir()
	if err := hstutest.Write(dir, many(false)); err != nil {
		t.Fatal(err)
	}
	set, err := safetensors.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	sources, _ := sourced(t, set, "item_id", "creators")
	items, creators := &asked{RowSource: sources["item_id"]}, &asked{RowSource: sources["creators"]}
	dev := null.New(null.Options{})
	m, err := hstu.OpenWith(dir, dev, model.Options{DType: "f32"}, map[string]hstu.RowSource{"item_id": items,
		"creators": creators})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	v := draw(m, rand.New(rand.NewPCG(3, 4)), 30, 4)
	p, answers := v.layout(t, m)
	states(t, m, dev, p, answers)
	for what, n := range map[string][2]int{"items": {items.rows, 40}, "creators": {creators.rows, 9}} {
		if n[0] < 2 || n[0] > n[1] {
			t.Errorf("%d rows of %s were asked for, of a table of %d", n[0], what, n[1])
		}
	}
}
