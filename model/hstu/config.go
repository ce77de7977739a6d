package hstu

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"grebe/internal/readfile"
	"grebe/model"
)

// Architecture is the name in config.json's architectures.
const Architecture = "HSTU"

// Encodings of positions and times.
const (
	Absolute  = "absolute"
	FromEnd   = "from_end"
	None      = "none"
	QuerySqrt = "query_sqrt"
	QueryLog  = "query_log"
)

// Postprocessors.
const (
	L2          = "l2"
	LayerNorm   = "layer_norm"
	TimestampLN = "timestamp_layer_norm"
)

// Config is config.json; FORMAT.md says what the keys mean.
type Config struct {
	Architectures []string `json:"architectures"`

	Hidden    int  `json:"hstu_transducer_embedding_dim"`
	Layers    int  `json:"hstu_attn_num_layers"`
	Heads     int  `json:"hstu_num_heads"`
	QKDim     int  `json:"hstu_attn_qk_dim"`
	ValueDim  int  `json:"hstu_attn_linear_dim"`
	GroupNorm bool `json:"hstu_group_norm"`

	Alpha       float64 `json:"attn_alpha,omitempty"`
	ScaleLength int     `json:"attn_scale_length"`
	Window      int     `json:"max_attn_len"`
	Context     int     `json:"contextual_seq_len"`
	MaxSeqLen   int     `json:"max_seq_len"`

	Positions       string `json:"position_encoding"`
	PositionBuckets int    `json:"num_position_buckets"`
	Times           string `json:"time_encoding"`
	TimeBuckets     int    `json:"num_time_buckets"`

	ItemTable     string `json:"item_table"`
	Items         int    `json:"num_items"`
	TableDim      int    `json:"hstu_embedding_table_dim"`
	Preprocessor  int    `json:"hstu_preprocessor_hidden_dim"`
	ActionWeights []int  `json:"action_weights"`
	ActionDim     int    `json:"action_embedding_dim"`

	Features []Feature        `json:"contextual_features"`
	Content  []ContentFeature `json:"content_features,omitempty"`

	Postprocessor string             `json:"postprocessor"`
	ItemMLP       int                `json:"item_mlp_hidden_dim"`
	TaskMLP       int                `json:"multitask_hidden_dim"`
	Tasks         []Task             `json:"multitask_configs"`
	Ranking       map[string]float64 `json:"ranking_weights,omitempty"`
	Retrieval     bool               `json:"retrieval"`
}

// Feature is a contextual feature: rows before the history.
type Feature struct {
	Name      string `json:"name"`
	Table     string `json:"table"`
	Rows      int    `json:"num_embeddings"`
	MaxLength int    `json:"max_length"`
	MinRows   int    `json:"min_uih_length"`
}

// Task is what a ranking head predicts: a probability (type 0) or a number (type 1).
type Task struct {
	Name   string  `json:"task_name"`
	Type   int     `json:"task_type"`
	Weight float64 `json:"task_weight"`
}

// The largest sizes accepted: a hostile config fails here and not in an allocation.
const (
	maxWidth   = 1 << 16
	maxLayers  = 1 << 10
	maxHeads   = 1 << 10
	maxRows    = 1 << 30
	maxActions = 12
	maxTasks   = 256
	maxSlots   = 1 << 10
	maxConfig  = 16 << 20
)

// Is reports whether the checkpoint in dir is one of HSTU.
func Is(dir string) bool {
	raw, err := readfile.Regular(filepath.Join(dir, model.ConfigFile), maxConfig)
	if err != nil {
		return false
	}
	var c Config
	return json.Unmarshal(raw, &struct {
		A *[]string `json:"architectures"`
	}{&c.Architectures}) == nil && len(c.Architectures) > 0 && c.Architectures[0] == Architecture
}

// ReadConfig reads the config.json of a checkpoint's folder.
func ReadConfig(dir string) (*Config, error) {
	path := filepath.Join(dir, model.ConfigFile)
	raw, err := readfile.Regular(path, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("hstu: %w", err)
	}
	c, err := ParseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("hstu: %s: %w", path, err)
	}
	return c, nil
}

// ParseConfig reads a config.json, fills in what it leaves out and refuses what makes no sense.
func ParseConfig(raw []byte) (*Config, error) {
	c := &Config{Positions: Absolute, Times: None, TimeBuckets: 2048, ItemTable: "item_id", ActionDim: 8,
		Postprocessor: L2, TaskMLP: 512}
	if err := json.Unmarshal(raw, c); err != nil {
		return nil, err
	}
	if len(c.Architectures) == 0 || c.Architectures[0] != Architecture {
		return nil, fmt.Errorf("architectures is %v, want [%q]", c.Architectures, Architecture)
	}
	if c.Alpha == 0 && c.QKDim > 0 {
		c.Alpha = 1 / math.Sqrt(float64(c.QKDim))
	}
	if c.PositionBuckets == 0 {
		c.PositionBuckets = c.MaxSeqLen
	}
	if len(c.Ranking) == 0 && len(c.Tasks) > 0 {
		c.Ranking = map[string]float64{c.Tasks[0].Name: 1}
	}
	return c, errors.Join(c.checkSizes(), c.checkChoices(), c.checkTasks(), c.checkFeatures(),
		c.checkContent())
}

func (c *Config) checkSizes() error {
	for _, s := range []struct {
		key         string
		v, low, top int
	}{
		{"hstu_transducer_embedding_dim", c.Hidden, 1, maxWidth},
		{"hstu_attn_num_layers", c.Layers, 1, maxLayers},
		{"hstu_num_heads", c.Heads, 1, maxHeads},
		{"hstu_attn_qk_dim", c.QKDim, 1, 1024},
		{"hstu_attn_linear_dim", c.ValueDim, 2, 1024},
		{"attn_scale_length", c.ScaleLength, 0, maxRows},
		{"max_attn_len", c.Window, 0, maxRows},
		{"max_seq_len", c.MaxSeqLen, 3, 1 << 24},
		{"num_position_buckets", c.PositionBuckets, 1, 1 << 24},
		{"num_time_buckets", c.TimeBuckets, 1, 1 << 16},
		{"num_items", c.Items, 1, maxRows},
		{"hstu_embedding_table_dim", c.TableDim, 1, maxWidth},
		{"hstu_preprocessor_hidden_dim", c.Preprocessor, 0, maxWidth},
		{"action_embedding_dim", c.ActionDim, 1, maxWidth},
		{"item_mlp_hidden_dim", c.ItemMLP, 0, maxWidth},
		{"multitask_hidden_dim", c.TaskMLP, 1, maxWidth},
	} {
		if s.v < s.low || s.v > s.top {
			return fmt.Errorf("%s is %d, want %d to %d", s.key, s.v, s.low, s.top)
		}
	}
	if c.ValueDim%2 != 0 || c.ValueDim < c.QKDim {
		return fmt.Errorf("hstu_attn_linear_dim is %d: want an even number, and no less than hstu_attn_qk_dim %d", c.ValueDim,
			c.QKDim)
	}
	if c.TableDim != c.Hidden && (c.Preprocessor == 0 || c.ItemMLP == 0) {
		return fmt.Errorf("hstu_embedding_table_dim is %d and the rows have %d: want a preprocessor and an item MLP, or "+
			"the same", c.TableDim, c.Hidden)
	}
	if int64(c.PositionBuckets)*int64(c.TimeBuckets+2) > math.MaxInt32 && c.Recomputes() != "" {
		return fmt.Errorf("num_position_buckets %d with num_time_buckets %d are more than 31 bits tell apart",
			c.PositionBuckets, c.TimeBuckets)
	}
	if len(c.ActionWeights) > maxActions {
		return fmt.Errorf("action_weights has %d types, at most %d", len(c.ActionWeights), maxActions)
	}
	if int64(c.Items)*int64(c.actions()) > math.MaxInt32-int64(maxSlots)*maxSlots {
		return fmt.Errorf("num_items %d with %d kinds of actions are more events than 31 bits tell apart", c.Items,
			c.actions())
	}
	return nil
}

func (c *Config) checkChoices() error {
	for _, s := range []struct {
		key, v string
		known  []string
	}{
		{"position_encoding", c.Positions, []string{Absolute, FromEnd, None}},
		{"time_encoding", c.Times, []string{None, QuerySqrt, QueryLog}},
		{"postprocessor", c.Postprocessor, []string{L2, LayerNorm, TimestampLN, None}},
	} {
		if !slices.Contains(s.known, s.v) {
			return fmt.Errorf("%s is %q, want one of %q", s.key, s.v, s.known)
		}
	}
	if a := float32(c.Alpha); a == 0 || math.IsInf(float64(a), 0) || a != a {
		return fmt.Errorf("attn_alpha is %v", c.Alpha)
	}
	return nil
}

func (c *Config) checkTasks() error {
	if len(c.Tasks) > maxTasks {
		return fmt.Errorf("multitask_configs has %d tasks, at most %d", len(c.Tasks), maxTasks)
	}
	if len(c.Tasks) == 0 && !c.Retrieval {
		return errors.New("there are no multitask_configs, and retrieval is false: the model answers nothing")
	}
	known := map[string]bool{}
	for i, t := range c.Tasks {
		if t.Name == "" || known[t.Name] || t.Type < 0 || t.Type > 1 {
			return fmt.Errorf("multitask_configs[%d]: name %q, type %d: want a new name, and type 0 or 1", i, t.Name, t.Type)
		}
		if i > 0 && t.Type < c.Tasks[i-1].Type {
			return errors.New("multitask_configs is not sorted by task_type")
		}
		known[t.Name] = true
	}
	for name, w := range c.Ranking {
		if !known[name] || math.IsNaN(w) || math.IsInf(w, 0) {
			return fmt.Errorf("ranking_weights: %q with weight %v is no task", name, w)
		}
	}
	return nil
}

func (c *Config) checkFeatures() error {
	slots, tokens := 0, int64(c.Items)*int64(c.actions())
	for i, f := range c.Features {
		if f.Name == "" || f.Table == "" || f.Rows < 1 || f.Rows > maxSlots*maxSlots/8 || f.MaxLength < 1 ||
			f.MaxLength > maxSlots || f.MinRows < 0 {
			return fmt.Errorf("contextual_features[%d]: %+v makes no sense", i, f)
		}
		slots += f.MaxLength
		tokens += int64(f.MaxLength) * int64(f.Rows+1)
	}
	if tokens > math.MaxInt32 {
		return fmt.Errorf("num_items %d with %d kinds of actions and the contextual_features' rows are %d tokens, more "+
			"than 31 bits tell apart", c.Items, c.actions(), tokens)
	}
	if slots > maxSlots {
		return fmt.Errorf("contextual_features take %d rows, at most %d", slots, maxSlots)
	}
	if c.Context != 0 && c.Context != slots {
		return fmt.Errorf("contextual_seq_len is %d, want 0 or the %d contextual rows", c.Context, slots)
	}
	if slots+3 > c.MaxSeqLen {
		return fmt.Errorf("max_seq_len is %d, with %d contextual rows", c.MaxSeqLen, slots)
	}
	return nil
}

// actions returns how many kinds of rows there are per item: the sets of action types, and the candidate.
func (c *Config) actions() int {
	if len(c.ActionWeights) == 0 {
		return 1
	}
	return 1<<len(c.ActionWeights) + 1
}

// slots returns the number of contextual rows.
func (c *Config) slots() int {
	n := 0
	for _, f := range c.Features {
		n += f.MaxLength
	}
	return n
}

// Recomputes says why nothing of a user can be reused, or "" when a returning user pays for new events only.
func (c *Config) Recomputes() string {
	switch {
	case c.Positions == FromEnd:
		return "positions count from the end (position_encoding)"
	case c.Times != None:
		return "times are relative to the query (time_encoding)"
	case len(c.Features) > 0:
		return "contextual rows come before the history (contextual_features)"
	case c.ScaleLength == 0:
		return "attention is divided by the length of the request (attn_scale_length)"
	}
	return ""
}
