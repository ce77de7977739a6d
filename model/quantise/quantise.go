// Package quantise writes a checkpoint of 8-bit integers in the compressed-tensors format (W8A8: one scale per output,
// activations rounded per token), which Grebe and others load, and reports what it costs.
//
// The integers are those that weights: int8 makes at load.
package quantise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"grebe/compute"
	"grebe/internal/readfile"
	"grebe/model"
	"grebe/model/safetensors"
)

// Options say what to do.
type Options struct {
	From string // folder of the checkpoint
	To   string // folder to write, which must not exist; "": report only
	// Keep has regular expressions of matrices that keep their format, such as `layers\.0\.`. Matrices that are
	// multiplied together (queries, keys and values; gate and up) are kept together.
	Keep []string
	Read float64 // as Calibration.Read
}

// Report is what 8-bit weights cost.
type Report struct {
	Layers []Layer `json:"layers"`
	Bytes  int64   `json:"bytes"`       // of all tensors
	After  int64   `json:"bytes_after"` // of all tensors, quantised
	Kept   float64 `json:"kept"`        // share of the products' operations that keep their format
	// Calibration has what Calibrate found, if it ran.
	Calibration []Sensitivity `json:"calibration,omitempty"`
}

// Layer has the relative error of a layer's weights: the norm of the difference over the norm.
type Layer struct {
	Layer  int      `json:"layer"`
	QKV    float64  `json:"qkv"`
	Out    float64  `json:"out"`
	GateUp float64  `json:"gate_up"`
	Down   float64  `json:"down"`
	Kept   []string `json:"kept,omitempty"` // products that keep their format: qkv, out, gate_up, down
}

// matrixName finds layer and kind of a matrix that is quantised.
var matrixName = regexp.MustCompile(`^(?:model\.)?layers\.(\d{1,4})\.` +
	`(?:self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj\.weight$`)

// products are those that matrices belong to.
var products = map[string]string{"q": "qkv", "k": "qkv", "v": "qkv", "o": "out", "gate": "gate_up", "up": "gate_up",
	"down": "down"}

// matrix is one to be quantised.
type matrix struct {
	name    string
	layer   int
	product string
	keep    bool
}

// Run quantises a checkpoint.
func Run(o Options) (*Report, error) {
	cfg, err := model.ReadConfig(o.From)
	if err != nil {
		return nil, err
	}
	if cfg.Quantisation != nil {
		return nil, fmt.Errorf("quantise: %s is quantised already, to %s", o.From, cfg.Quantisation.DType)
	}
	set, err := safetensors.Open(o.From)
	if err != nil {
		return nil, fmt.Errorf("quantise: %w", err)
	}
	defer set.Close()
	matrices, err := find(set, o.Keep)
	if err != nil {
		return nil, fmt.Errorf("quantise: %s: %w", o.From, err)
	}
	r, err := measure(set, matrices, cfg.Layers, o.Read)
	if err != nil || o.To == "" {
		return r, err
	}
	if err := write(o, set, matrices); err != nil {
		return nil, fmt.Errorf("quantise: write %s: %w", o.To, err)
	}
	return r, nil
}

// find returns the matrices of a checkpoint's layers, by name.
func find(set *safetensors.Set, keep []string) (map[string]*matrix, error) {
	var patterns []*regexp.Regexp
	for _, text := range keep {
		p, err := regexp.Compile(text)
		if err != nil {
			return nil, fmt.Errorf("keep %q: %w", text, err)
		}
		patterns = append(patterns, p)
	}
	out, kept := map[string]*matrix{}, map[string]bool{}
	for _, name := range set.Names() {
		m := matrixName.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		x := &matrix{name: name, product: products[m[2]]}
		if _, err := fmt.Sscan(m[1], &x.layer); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		out[name] = x
		for _, p := range patterns {
			if p.MatchString(name) {
				kept[x.group()] = true
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no matrix of a layer was found")
	}
	for _, x := range out {
		x.keep = kept[x.group()]
	}
	return out, nil
}

// group names the product that a matrix belongs to.
func (m *matrix) group() string { return fmt.Sprintf("%d %s", m.layer, m.product) }

// measure reports what quantising costs.
func measure(set *safetensors.Set, matrices map[string]*matrix, layers int, read float64) (*Report, error) {
	r := &Report{Layers: make([]Layer, layers), Bytes: set.Bytes(), After: set.Bytes()}
	for i := range r.Layers {
		r.Layers[i].Layer = i
	}
	type sums struct{ diff, all float64 }
	errs := map[string]*sums{}
	all, kept := 0.0, 0.0
	for _, name := range set.Names() {
		m := matrices[name]
		if m == nil {
			continue
		}
		if m.layer >= layers {
			return nil, fmt.Errorf("quantise: tensor %q is of a layer that config.json does not have", name)
		}
		t, q, scales, err := integers(set, name)
		if err != nil {
			return nil, err
		}
		e := errs[m.group()]
		if e == nil {
			e = &sums{}
			errs[m.group()] = e
		}
		for i, v := range safetensors.Floats(t) {
			d := float64(v) - float64(q[i])*float64(scales[i/t.Cols])
			e.diff, e.all = e.diff+d*d, e.all+float64(v)*float64(v)
		}
		set.Release(name)
		cost := operations(m.product, m.layer, layers, t.Rows*t.Cols, read)
		all += cost
		if l := &r.Layers[m.layer]; m.keep {
			kept += cost
			if !slices.Contains(l.Kept, m.product) {
				l.Kept = append(l.Kept, m.product)
			}
		} else {
			r.After -= int64(t.Rows*t.Cols*(t.DType.Size()-1) - 4*t.Rows)
		}
	}
	for i := range r.Layers {
		l := &r.Layers[i]
		for product, to := range map[string]*float64{"qkv": &l.QKV, "out": &l.Out, "gate_up": &l.GateUp, "down": &l.Down} {
			if e := errs[(&matrix{layer: i, product: product}).group()]; e != nil && e.all > 0 {
				*to = math.Sqrt(e.diff / e.all)
			}
		}
	}
	r.Kept = kept / all
	return r, nil
}

// integers quantises a matrix, as compute.Quantiser defines it. Rows of zeros have the scale 1.
func integers(set *safetensors.Set, name string) (t compute.Tensor, q []int8, scales []float32, err error) {
	if t, err = set.Tensor(name); err != nil {
		return t, nil, nil, err
	}
	if i := safetensors.NotFinite(t); i >= 0 {
		return t, nil, nil, fmt.Errorf("quantise: tensor %q: value %d is infinite or no number", name, i)
	}
	values := safetensors.Floats(t)
	q, scales = make([]int8, len(values)), make([]float32, t.Rows)
	for r := range scales {
		row := values[r*t.Cols : (r+1)*t.Cols]
		largest := float32(0)
		for _, v := range row {
			largest = max(largest, v, -v)
		}
		if scales[r] = 1; largest < 0x1p-100 {
			continue
		}
		inverse := 127 / largest
		scales[r] = largest / 127
		for i, v := range row {
			q[r*t.Cols+i] = int8(math.RoundToEven(float64(float32(v * inverse))))
		}
	}
	return t, q, scales, nil
}

// shardBytes is the size of files of large checkpoints.
const shardBytes = 5 << 30

func write(o Options, set *safetensors.Set, matrices map[string]*matrix) (err error) {
	if _, err := os.Lstat(o.To); !errors.Is(err, os.ErrNotExist) {
		return errors.Join(errors.New("it exists already"), err)
	}
	tmp := strings.TrimRight(o.To, "/") + ".part"
	if err := os.Mkdir(tmp, 0o777); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	if err := copyOthers(o.From, tmp); err != nil {
		return err
	}
	if err := writeConfig(o.From, tmp, matrices); err != nil {
		return err
	}
	tensors, err := list(set, matrices)
	if err != nil {
		return err
	}
	if len(set.Files()) > 1 {
		err = safetensors.WriteSharded(tmp, shardBytes, tensors)
	} else {
		err = safetensors.Write(filepath.Join(tmp, safetensors.SingleFile), tensors)
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp, o.To)
}

// list returns the tensors to write. A matrix is quantised when its turn comes, and its scales follow it.
func list(set *safetensors.Set, matrices map[string]*matrix) ([]safetensors.Named, error) {
	formats := map[string]compute.DType{"F32": compute.F32, "BF16": compute.BF16, "F16": compute.F16}
	var out []safetensors.Named
	for _, name := range set.Names() {
		info, _ := set.Lookup(name)
		dt, ok := formats[info.DType]
		if !ok {
			return nil, fmt.Errorf("tensor %q is %s, want F32, F16 or BF16", name, info.DType)
		}
		if m := matrices[name]; m == nil || m.keep {
			out = append(out, safetensors.Named{Name: name, DType: dt, Shape: info.Shape, Data: func(w io.Writer) error {
				raw, err := set.Raw(name)
				if err == nil {
					_, err = w.Write(raw)
				}
				set.Release(name)
				return err
			}})
			continue
		}
		var scales []float32
		out = append(out, safetensors.Named{Name: name, DType: compute.INT8, Shape: info.Shape,
			Data: func(w io.Writer) error {
				_, q, s, err := integers(set, name)
				if err != nil {
					return err
				}
				set.Release(name)
				scales = s
				bytes := make([]byte, len(q))
				for i, v := range q {
					bytes[i] = byte(v)
				}
				_, err = w.Write(bytes)
				return err
			}}, safetensors.Named{Name: name + "_scale", DType: compute.F32, Shape: []int{info.Shape[0], 1},
			Data: func(w io.Writer) error {
				_, err := w.Write(safetensors.Encode(nil, compute.F32, scales...))
				return err
			}})
	}
	return out, nil
}

// maxFile bounds the files that are copied beside the weights.
const maxFile = 256 << 20

// copyOthers copies tokenizers and what else describes the model.
func copyOthers(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		weights := strings.HasSuffix(name, ".safetensors") || name == safetensors.IndexFile || name == model.ConfigFile
		st, err := os.Stat(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if weights || !st.Mode().IsRegular() || strings.HasSuffix(name, ".bin") || strings.HasSuffix(name, ".pth") {
			continue
		}
		raw, err := readfile.Regular(filepath.Join(from, name), maxFile)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), raw, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// writeConfig adds quantization_config to config.json.
func writeConfig(from, to string, matrices map[string]*matrix) error {
	raw, err := readfile.Regular(filepath.Join(from, model.ConfigFile), maxFile)
	if err != nil {
		return err
	}
	var config map[string]json.RawMessage
	if err := json.Unmarshal(raw, &config); err != nil {
		return err
	}
	ignore := []string{"lm_head"}
	for _, m := range matrices {
		if m.keep {
			ignore = append(ignore, strings.TrimSuffix(m.name, ".weight"))
		}
	}
	slices.Sort(ignore)
	scheme := func(strategy string, dynamic bool) map[string]any {
		return map[string]any{"num_bits": 8, "type": "int", "symmetric": true, "strategy": strategy, "dynamic": dynamic}
	}
	if config["quantization_config"], err = json.Marshal(map[string]any{
		"quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed",
		"ignore": ignore,
		"config_groups": map[string]any{"group_0": map[string]any{
			"targets": []string{"Linear"}, "weights": scheme("channel", false), "input_activations": scheme("token", true),
		}},
	}); err != nil {
		return err
	}
	if raw, err = json.MarshalIndent(config, "", "  "); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, model.ConfigFile), append(raw, '\n'), 0o666)
}
