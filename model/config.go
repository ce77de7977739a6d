package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"grebe/internal/readfile"
)

// ConfigFile is the name of the file in a checkpoint's folder that describes the model.
const ConfigFile = "config.json"

// maxConfig bounds the size of a config.json in bytes; real ones have about a thousand.
const maxConfig = 16 << 20

// Config is the part of a Hugging Face config.json that a dense decoder needs. ParseConfig checks it,
// so its sizes can be multiplied in 64 bits without overflow.
type Config struct {
	Architecture string // architectures[0]

	Hidden  int
	Layers  int
	Heads   int
	KVHeads int // divides Heads
	HeadDim int // even; Hidden/Heads when the file does not say
	Inter   int
	Vocab   int

	Eps           float64
	TieEmbeddings bool
	AttentionBias bool
	MLPBias       bool
	MaxPositions  int
	Rope          RopeConfig

	// Quantisation is nil for a checkpoint whose matrices have 16 bits or more.
	Quantisation *Quantisation
	// HeadDimGiven reports whether the file has head_dim, for architectures with another default.
	HeadDimGiven bool
}

// The largest sizes accepted: generous for any decoder that exists, small enough that a hostile
// config fails here and not in an allocation.
const (
	maxHidden    = 1 << 17
	maxLayers    = 1 << 10
	maxHeads     = 1 << 12
	maxHeadDim   = 1 << 10
	maxInter     = 1 << 20
	maxVocab     = 1 << 24
	maxPositions = 1 << 30
)

// configFile is config.json as written by transformers 4.x and 5.x.
type configFile struct {
	Architectures []string `json:"architectures"`

	Hidden    *int `json:"hidden_size"`
	Layers    *int `json:"num_hidden_layers"`
	Heads     *int `json:"num_attention_heads"`
	KVHeads   *int `json:"num_key_value_heads"`
	HeadDim   *int `json:"head_dim"`
	Inter     *int `json:"intermediate_size"`
	Vocab     *int `json:"vocab_size"`
	Positions *int `json:"max_position_embeddings"`

	Eps           *float64 `json:"rms_norm_eps"`
	HiddenAct     string   `json:"hidden_act"`
	TieEmbeddings bool     `json:"tie_word_embeddings"`
	AttentionBias bool     `json:"attention_bias"`
	MLPBias       bool     `json:"mlp_bias"`

	RopeTheta         *float64  `json:"rope_theta"`
	RopeScaling       *ropeFile `json:"rope_scaling"`
	RopeParameters    *ropeFile `json:"rope_parameters"`
	PartialRotary     *float64  `json:"partial_rotary_factor"`
	OriginalPositions *float64  `json:"original_max_position_embeddings"`

	UseSlidingWindow *bool    `json:"use_sliding_window"`
	SlidingWindow    *int     `json:"sliding_window"`
	MaxWindowLayers  *int     `json:"max_window_layers"`
	LayerTypes       []string `json:"layer_types"`

	Quantization json.RawMessage `json:"quantization_config"`
}

// ReadConfig reads the config.json of a checkpoint's folder.
func ReadConfig(dir string) (*Config, error) {
	path := filepath.Join(dir, ConfigFile)
	raw, err := readfile.Regular(path, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	c, err := ParseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("model: %s: %w", path, err)
	}
	return c, nil
}

// ParseConfig reads a config.json and refuses what would make a dense decoder compute something else
// than the file's author meant.
func ParseConfig(raw []byte) (*Config, error) {
	var f configFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, err
	}
	if len(f.Architectures) == 0 || f.Architectures[0] == "" {
		return nil, errors.New("architectures names no model")
	}
	quantisation, err := parseQuantisation(f.Quantization)
	if err != nil {
		return nil, err
	}
	if f.HiddenAct != "" && f.HiddenAct != "silu" {
		return nil, fmt.Errorf("hidden_act %q is not supported, want silu", f.HiddenAct)
	}
	c := &Config{
		Architecture:  f.Architectures[0],
		TieEmbeddings: f.TieEmbeddings,
		AttentionBias: f.AttentionBias,
		MLPBias:       f.MLPBias,
		HeadDimGiven:  f.HeadDim != nil,
		Quantisation:  quantisation,
	}
	if err := f.sizes(c); err != nil {
		return nil, err
	}
	if err := f.eps(c); err != nil {
		return nil, err
	}
	if err := f.window(c); err != nil {
		return nil, err
	}
	if c.Rope, err = f.rope(); err != nil {
		return nil, err
	}
	return c, c.Rope.check(c.HeadDim)
}

// sizes copies the integers, each within its bounds.
func (f *configFile) sizes(c *Config) error {
	for _, s := range []struct {
		name string
		from *int
		to   *int
		most int
	}{
		{"hidden_size", f.Hidden, &c.Hidden, maxHidden},
		{"num_hidden_layers", f.Layers, &c.Layers, maxLayers},
		{"num_attention_heads", f.Heads, &c.Heads, maxHeads},
		{"num_key_value_heads", or(f.KVHeads, f.Heads), &c.KVHeads, maxHeads},
		{"intermediate_size", f.Inter, &c.Inter, maxInter},
		{"vocab_size", f.Vocab, &c.Vocab, maxVocab},
		{"max_position_embeddings", f.Positions, &c.MaxPositions, maxPositions},
	} {
		if s.from == nil {
			return fmt.Errorf("%s is missing", s.name)
		}
		if *s.from < 1 || *s.from > s.most {
			return fmt.Errorf("%s is %d, want 1 to %d", s.name, *s.from, s.most)
		}
		*s.to = *s.from
	}
	if c.Heads%c.KVHeads != 0 {
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	}
	if f.HeadDim == nil {
		if c.Hidden%c.Heads != 0 {
			return fmt.Errorf("hidden_size %d is not a multiple of num_attention_heads %d, and there is no head_dim",
				c.Hidden, c.Heads)
		}
		return c.SetHeadDim(c.Hidden / c.Heads)
	}
	return c.SetHeadDim(*f.HeadDim)
}

// SetHeadDim sets the size of a head, within its bounds.
func (c *Config) SetHeadDim(n int) error {
	if n < 2 || n > maxHeadDim || n%2 != 0 {
		return fmt.Errorf("head_dim is %d, want an even number from 2 to %d", n, maxHeadDim)
	}
	c.HeadDim = n
	return nil
}

func (f *configFile) eps(c *Config) error {
	c.Eps = 1e-6 // the default of every architecture here
	if f.Eps != nil {
		c.Eps = *f.Eps
	}
	if !(c.Eps > 0 && c.Eps < 1) || float32(c.Eps) == 0 {
		return fmt.Errorf("rms_norm_eps is %v, want a number between 0 and 1", c.Eps)
	}
	return nil
}

// window refuses sliding windows shorter than the longest input: only those change results.
func (f *configFile) window(c *Config) error {
	sliding := -1
	for i, kind := range f.LayerTypes {
		switch kind {
		case "full_attention":
		case "sliding_attention":
			sliding = i
		default:
			return fmt.Errorf("layer_types: %q is not supported", kind)
		}
	}
	on := f.UseSlidingWindow != nil && *f.UseSlidingWindow
	if len(f.LayerTypes) == 0 && on && f.SlidingWindow != nil {
		first := 28 // the default of max_window_layers
		if f.MaxWindowLayers != nil {
			first = *f.MaxWindowLayers
		}
		if first < c.Layers {
			sliding = c.Layers - 1
		}
	}
	if sliding < 0 || f.SlidingWindow != nil && *f.SlidingWindow >= c.MaxPositions {
		return nil
	}
	return fmt.Errorf("layer %d attends in a sliding window, which is not supported", sliding)
}

func or[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
