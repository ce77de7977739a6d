package modeltest

import (
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"

	"grebe/compute"
	"grebe/model"
	"grebe/model/safetensors"
)

// tensors lists the checkpoint's tensors in the order in which a decoder uses them.
func (s *Spec) tensors() []safetensors.Named {
	w := &lister{spec: s}
	logits := 2 / math.Sqrt(float64(s.Hidden)) // logits of deviation 2
	w.matrix(model.Embedding, s.Vocab, s.Hidden, logits)
	for i := range s.Layers {
		w.layer(fmt.Sprintf("layers.%d.", i))
	}
	w.gain("norm.weight", s.Hidden)
	if !s.Tied {
		w.add("lm_head.weight", []int{s.Vocab, s.Hidden}, 0, logits)
	}
	return w.list
}

type lister struct {
	spec   *Spec
	prefix string
	list   []safetensors.Named
}

func (w *lister) layer(prefix string) {
	s := w.spec
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	qkvBias := s.Architecture == Qwen2 || s.Bias
	outBias := s.Architecture != Qwen2 && s.Bias
	mlpBias := s.Architecture == Llama && s.Bias
	// Each layer adds two terms to the residual; together all of them add about one.
	residual := 1 / math.Sqrt(2*float64(s.Layers))

	w.prefix = prefix
	w.gain("input_layernorm.weight", s.Hidden)
	w.linear("self_attn.q_proj", q, s.Hidden, 1, qkvBias)
	w.linear("self_attn.k_proj", kv, s.Hidden, 1, qkvBias)
	w.linear("self_attn.v_proj", kv, s.Hidden, 1, qkvBias)
	if s.Architecture == Qwen3 {
		w.gain("self_attn.q_norm.weight", s.HeadDim)
		w.gain("self_attn.k_norm.weight", s.HeadDim)
	}
	w.linear("self_attn.o_proj", s.Hidden, q, residual, outBias)
	w.gain("post_attention_layernorm.weight", s.Hidden)
	w.linear("mlp.gate_proj", s.Inter, s.Hidden, 1, mlpBias)
	w.linear("mlp.up_proj", s.Inter, s.Hidden, 1, mlpBias)
	w.linear("mlp.down_proj", s.Hidden, s.Inter, residual, mlpBias)
	w.prefix = ""
}

// linear adds a matrix whose products of normed inputs have deviation scale, and its bias.
func (w *lister) linear(name string, out, in int, scale float64, bias bool) {
	w.matrix(name+".weight", out, in, scale/math.Sqrt(float64(in)))
	if bias {
		w.add(w.full(name+".bias"), []int{out}, 0, 0.1)
	}
}

func (w *lister) matrix(name string, rows, cols int, dev float64) {
	w.add(w.full(name), []int{rows, cols}, 0, dev)
}

func (w *lister) gain(name string, n int) { w.add(w.full(name), []int{n}, 1, 0.1) }

func (w *lister) full(name string) string {
	if w.spec.Bare {
		return w.prefix + name
	}
	return "model." + w.prefix + name
}

func (w *lister) add(name string, shape []int, mean, dev float64) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	hash := fnv.New64a()
	hash.Write([]byte(name))
	dt, seed, stream := w.spec.DType, w.spec.Seed, hash.Sum64()
	w.list = append(w.list, safetensors.Named{
		Name: name, DType: dt, Shape: shape,
		Data: func(out io.Writer) error {
			return writeNormal(out, dt, n, rand.NewPCG(seed, stream), mean, dev)
		},
	})
}

// quantiles holds the standard normal's value at the middle of each of 65536 equal parts. Drawing one
// by 16 random bits is a normal number for every purpose here, ten times as fast as computing it.
var quantiles = func() []float64 {
	q := make([]float64, 1<<16)
	for i := range q {
		q[i] = math.Sqrt2 * math.Erfinv((2*float64(i)+1)/(1<<16)-1)
	}
	return q
}()

// writeNormal writes n random values.
func writeNormal(w io.Writer, dt compute.DType, n int, random *rand.PCG, mean, dev float64) error {
	if n < len(quantiles) {
		values := make([]byte, 0, n*dt.Size())
		for range n {
			v := mean + dev*quantiles[random.Uint64()>>48]
			values = safetensors.Encode(values, dt, float32(v))
		}
		_, err := w.Write(values)
		return err
	}
	table := make([]byte, 0, len(quantiles)*dt.Size())
	for _, q := range quantiles {
		table = safetensors.Encode(table, dt, float32(mean+dev*q))
	}
	buf := make([]byte, 1<<18)
	for left := n * dt.Size(); left > 0; {
		part := buf[:min(left, len(buf))]
		if dt.Size() == 2 {
			draw2(part, table, random)
		} else {
			draw4(part, table, random)
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
		left -= len(part)
	}
	return nil
}

// draw2 fills dst with random entries of a table of 2-byte values, four per random number.
func draw2(dst, table []byte, random *rand.PCG) {
	t := (*[2 << 16]byte)(table)
	for len(dst) >= 8 {
		r := random.Uint64()
		for i := 0; i < 8; i += 2 {
			j := uint(r&0xffff) * 2
			dst[i], dst[i+1] = t[j], t[j+1]
			r >>= 16
		}
		dst = dst[8:]
	}
	for len(dst) > 0 {
		j := uint(random.Uint64()>>48) * 2
		dst = dst[copy(dst, t[j:j+2]):]
	}
}

// draw4 is draw2 for 4-byte values.
func draw4(dst, table []byte, random *rand.PCG) {
	t := (*[4 << 16]byte)(table)
	for len(dst) >= 16 {
		r := random.Uint64()
		for i := 0; i < 16; i += 4 {
			j := uint(r&0xffff) * 4
			*(*[4]byte)(dst[i:]) = *(*[4]byte)(t[j:])
			r >>= 16
		}
		dst = dst[16:]
	}
	for len(dst) > 0 {
		j := uint(random.Uint64()>>48) * 4
		dst = dst[copy(dst, t[j:j+4]):]
	}
}
