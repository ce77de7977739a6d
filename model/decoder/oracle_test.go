package decoder_test

import (
	"fmt"
	"math"
	"testing"

	"grebe/model"
	"grebe/model/modeltest"
	"grebe/model/safetensors"
)

// oracle is the decoder as the Hugging Face models define it, in float64, with dense attention and an
// explicit mask, written without any code of the package under test.
type oracle struct {
	t       *testing.T
	cfg     *model.Config
	spec    modeltest.Spec
	weights *safetensors.Set

	// project, when set, sees the unrotated keys and the values of every layer, and may change them.
	project func(layer int, k, v [][]float64)
}

func newOracle(t *testing.T, dir string, spec modeltest.Spec) *oracle {
	t.Helper()
	cfg, err := model.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := safetensors.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { weights.Close() })
	return &oracle{t: t, cfg: cfg, spec: spec, weights: weights}
}

// get returns a tensor as rows, nil when the checkpoint lacks it.
func (o *oracle) get(name string) [][]float64 {
	if !o.spec.Bare && name != "lm_head.weight" {
		name = "model." + name
	}
	if _, ok := o.weights.Lookup(name); !ok {
		return nil
	}
	w, err := o.weights.Tensor(name)
	if err != nil {
		o.t.Fatal(err)
	}
	values := safetensors.Floats(w)
	rows := make([][]float64, w.Rows)
	for r := range rows {
		for c := range w.Cols {
			rows[r] = append(rows[r], float64(values[r*w.Cols+c]))
		}
	}
	return rows
}

// linear is torch's nn.Linear: x·Wᵀ + b.
func (o *oracle) linear(x [][]float64, name string) [][]float64 {
	w, b := o.get(name+".weight"), o.get(name+".bias")
	out := make([][]float64, len(x))
	for i := range x {
		out[i] = make([]float64, len(w))
		for j := range w {
			for k := range w[j] {
				out[i][j] += x[i][k] * w[j][k]
			}
			if b != nil {
				out[i][j] += b[0][j]
			}
		}
	}
	return out
}

func (o *oracle) norm(x []float64, name string) []float64 {
	gain := o.get(name)[0]
	square := 0.0
	for _, v := range x {
		square += v * v
	}
	scale := 1 / math.Sqrt(square/float64(len(x))+o.cfg.Eps)
	out := make([]float64, len(x))
	for i := range x {
		out[i] = gain[i] * x[i] * scale
	}
	return out
}

func (o *oracle) norms(x [][]float64, name string) [][]float64 {
	out := make([][]float64, len(x))
	for i := range x {
		out[i] = o.norm(x[i], name)
	}
	return out
}

// rotate applies rotate_half's formula to one head.
func (o *oracle) rotate(v []float64, position int) []float64 {
	inv := o.cfg.Rope.Rope(len(v)).InvFreq
	out := make([]float64, len(v))
	half := len(v) / 2
	for i := range v {
		angle := float64(float32(position) * inv[i%half])
		other := -v[(i+half)%len(v)]
		if i >= half {
			other = v[i-half]
		}
		out[i] = v[i]*math.Cos(angle) + other*math.Sin(angle)
	}
	return out
}

// attention computes one layer's self-attention of normed rows.
func (o *oracle) attention(x [][]float64, layer int, positions []int, mask [][]bool) [][]float64 {
	c, d, prefix := o.cfg, o.cfg.HeadDim, fmt.Sprintf("layers.%d.self_attn.", layer)
	q := o.linear(x, prefix+"q_proj")
	k := o.linear(x, prefix+"k_proj")
	v := o.linear(x, prefix+"v_proj")
	if o.project != nil {
		o.project(layer, k, v)
	}
	head := func(rows [][]float64, r, h int) []float64 { return rows[r][h*d : (h+1)*d] }
	qk := func(rows [][]float64, r, h int, norm string) []float64 {
		one := head(rows, r, h)
		if o.spec.Architecture == modeltest.Qwen3 {
			one = o.norm(one, prefix+norm)
		}
		return o.rotate(one, positions[r])
	}
	out := make([][]float64, len(x))
	for r := range x {
		out[r] = make([]float64, c.Heads*d)
		for h := range c.Heads {
			shared := h / (c.Heads / c.KVHeads) // repeat_kv
			query := qk(q, r, h, "q_norm.weight")
			scores := make([]float64, len(x))
			sum := 0.0
			for s := range x {
				if !mask[r][s] {
					continue
				}
				key := qk(k, s, shared, "k_norm.weight")
				dot := 0.0
				for i := range key {
					dot += query[i] * key[i]
				}
				scores[s] = math.Exp(dot / math.Sqrt(float64(d)))
				sum += scores[s]
			}
			for s := range x {
				for i, value := range head(v, s, shared) {
					out[r][h*d+i] += scores[s] / sum * value
				}
			}
		}
	}
	return o.linear(out, prefix+"o_proj")
}

func (o *oracle) mlp(x [][]float64, prefix string) [][]float64 {
	gate, up := o.linear(x, prefix+"gate_proj"), o.linear(x, prefix+"up_proj")
	for r := range gate {
		for i, g := range gate[r] {
			gate[r][i] = g / (1 + math.Exp(-g)) * up[r][i]
		}
	}
	return o.linear(gate, prefix+"down_proj")
}

// forward returns the normed hidden states and the logits of every row.
func (o *oracle) forward(tokens, positions []int, mask [][]bool) (hidden, logits [][]float64) {
	table := o.get("embed_tokens.weight")
	x := make([][]float64, len(tokens))
	for r, id := range tokens {
		x[r] = append(x[r], table[id]...)
	}
	add := func(y [][]float64) {
		for r := range x {
			for i := range x[r] {
				x[r][i] += y[r][i]
			}
		}
	}
	for i := range o.cfg.Layers {
		prefix := fmt.Sprintf("layers.%d.", i)
		add(o.attention(o.norms(x, prefix+"input_layernorm.weight"), i, positions, mask))
		add(o.mlp(o.norms(x, prefix+"post_attention_layernorm.weight"), prefix+"mlp."))
	}
	hidden = o.norms(x, "norm.weight")
	head := table
	if !o.spec.Tied {
		head = o.get("lm_head.weight")
	}
	logits = make([][]float64, len(hidden))
	for r := range hidden {
		for _, row := range head {
			dot := 0.0
			for i := range row {
				dot += hidden[r][i] * row[i]
			}
			logits[r] = append(logits[r], dot)
		}
	}
	return hidden, logits
}
