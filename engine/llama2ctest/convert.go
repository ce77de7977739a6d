// Package llama2ctest reads the checkpoints of llama2.c, small Llama models trained for tests and
// teaching: Convert turns a model into a Hugging Face folder, ReadTokenizer reads its vocabulary.
package llama2ctest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"grebe/compute"
	"grebe/model"
	"grebe/model/safetensors"
)

const (
	headerBytes = 7 * 4
	valueBytes  = 4
	maxFile     = 4 << 30
)

// header is the start of a version 0 file, seven int32.
type header struct {
	Dim, Hidden, Layers, Heads, KVHeads, Vocab, SeqLen int
	// shared means that the embedding is the output projection too; the file has Vocab negative if not.
	shared bool
}

func (h *header) headDim() int { return h.Dim / h.Heads }

func parseHeader(raw []byte) (h header, err error) {
	for i, to := range []*int{&h.Dim, &h.Hidden, &h.Layers, &h.Heads, &h.KVHeads, &h.Vocab, &h.SeqLen} {
		*to = int(int32(binary.LittleEndian.Uint32(raw[4*i:])))
	}
	h.shared = h.Vocab > 0
	if !h.shared {
		h.Vocab = -h.Vocab
	}
	for _, v := range []int{h.Dim, h.Hidden, h.Layers, h.Heads, h.KVHeads, h.Vocab, h.SeqLen} {
		if v < 1 || v > 1<<20 {
			return h, fmt.Errorf("not a llama2.c checkpoint: sizes %+v", h)
		}
	}
	if h.Dim%h.Heads != 0 || h.Heads%h.KVHeads != 0 || h.headDim()%2 != 0 {
		return h, fmt.Errorf("sizes do not divide: %+v", h)
	}
	return h, nil
}

// Convert reads the version 0 checkpoint file bin and writes config.json and model.safetensors to dir.
func Convert(bin, dir string) error {
	raw, err := readFile(bin)
	if err != nil {
		return fmt.Errorf("llama2c: %w", err)
	}
	h, err := parseHeader(raw)
	if err != nil {
		return fmt.Errorf("llama2c: %s: %w", bin, err)
	}
	tensors, err := h.tensors(raw[headerBytes:])
	if err != nil {
		return fmt.Errorf("llama2c: %s: %w", bin, err)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("llama2c: %w", err)
	}
	if err := safetensors.Write(filepath.Join(dir, safetensors.SingleFile), tensors); err != nil {
		return fmt.Errorf("llama2c: convert %s: %w", bin, err)
	}
	if err := h.writeConfig(filepath.Join(dir, model.ConfigFile)); err != nil {
		return fmt.Errorf("llama2c: convert %s: %w", bin, err)
	}
	return nil
}

func readFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() < headerBytes || st.Size() > maxFile {
		return nil, fmt.Errorf("%s is not a file of %d to %d bytes", path, headerBytes, maxFile)
	}
	return os.ReadFile(path)
}

func (h *header) writeConfig(path string) error {
	raw, err := json.MarshalIndent(map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama",
		"hidden_size": h.Dim, "intermediate_size": h.Hidden, "num_hidden_layers": h.Layers,
		"num_attention_heads": h.Heads, "num_key_value_heads": h.KVHeads, "vocab_size": h.Vocab,
		"max_position_embeddings": h.SeqLen, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
		"hidden_act": "silu", "tie_word_embeddings": h.shared, "torch_dtype": "float32",
		"bos_token_id": BOS, "eos_token_id": EOS,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o666)
}

// tensors cuts the weights, which lie one kind after the other, each for all layers.
func (h *header) tensors(data []byte) ([]safetensors.Named, error) {
	kv := h.KVHeads * h.headDim()
	c := &cutter{data: data}
	c.whole("model.embed_tokens.weight", h.Vocab, h.Dim)
	c.layers(h.Layers, "input_layernorm.weight", 0, h.Dim)
	c.layers(h.Layers, "self_attn.q_proj.weight", h.headDim(), h.Dim, h.Dim)
	c.layers(h.Layers, "self_attn.k_proj.weight", h.headDim(), kv, h.Dim)
	c.layers(h.Layers, "self_attn.v_proj.weight", 0, kv, h.Dim)
	c.layers(h.Layers, "self_attn.o_proj.weight", 0, h.Dim, h.Dim)
	c.layers(h.Layers, "post_attention_layernorm.weight", 0, h.Dim)
	c.layers(h.Layers, "mlp.gate_proj.weight", 0, h.Hidden, h.Dim)
	c.layers(h.Layers, "mlp.down_proj.weight", 0, h.Dim, h.Hidden)
	c.layers(h.Layers, "mlp.up_proj.weight", 0, h.Hidden, h.Dim)
	c.whole("model.norm.weight", h.Dim)
	c.take(h.SeqLen * h.headDim()) // cosines and sines of old, recomputed by everyone
	if !h.shared {
		c.whole("lm_head.weight", h.Vocab, h.Dim)
	}
	if c.err == nil && len(c.data) > 0 {
		c.err = fmt.Errorf("%d bytes follow the weights", len(c.data))
	}
	return c.list, c.err
}

// cutter takes tensors off the front of data.
type cutter struct {
	data []byte
	list []safetensors.Named
	err  error
}

func (c *cutter) take(values int) []byte {
	if c.err == nil && values > len(c.data)/valueBytes {
		c.err = errors.New("truncated")
	}
	if c.err != nil {
		return nil
	}
	part := c.data[:values*valueBytes]
	c.data = c.data[values*valueBytes:]
	return part
}

func (c *cutter) whole(name string, shape ...int) { c.add(name, 0, shape) }

func (c *cutter) layers(n int, name string, headDim int, shape ...int) {
	for i := 0; i < n && c.err == nil; i++ {
		c.add(fmt.Sprintf("model.layers.%d.%s", i, name), headDim, shape)
	}
}

// add takes one tensor. With headDim set, the rows of each head are brought from adjacent pairs to
// halves, the order in which Hugging Face models rotate them.
func (c *cutter) add(name string, headDim int, shape []int) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	data := c.take(n)
	if headDim > 0 {
		data = halves(data, headDim, shape[1]*valueBytes)
	}
	c.list = append(c.list, safetensors.Named{
		Name: name, DType: compute.F32, Shape: shape, Data: safetensors.Bytes(data)})
}

// halves reorders rows: of a head's rows 0, 1, 2, 3, … the even ones come first, then the odd ones.
func halves(rows []byte, headDim, rowBytes int) []byte {
	out := make([]byte, 0, len(rows))
	for head := 0; head < len(rows); head += headDim * rowBytes {
		for _, odd := range []int{0, 1} {
			for i := odd; i < headDim; i += 2 {
				from := head + i*rowBytes
				out = append(out, rows[from:from+rowBytes]...)
			}
		}
	}
	return out
}
