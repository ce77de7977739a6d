package model

import (
	"encoding/json"
	"fmt"
	"math"

	"grebe/compute"
)

// RopeConfig is a rotary embedding as a config describes it.
type RopeConfig struct {
	Type  string // "default", "linear" or "llama3"
	Theta float64

	// Factor stretches positions (linear), or low frequencies (llama3).
	Factor float64
	// LowFreq and HighFreq bound, as turns within OriginalPositions, the frequencies that llama3 blends.
	LowFreq, HighFreq, OriginalPositions float64
}

// ropeFile is rope_scaling (4.x) or rope_parameters (5.x).
type ropeFile struct {
	Type              string   `json:"rope_type"`
	OldType           string   `json:"type"`
	Theta             *float64 `json:"rope_theta"`
	Factor            *float64 `json:"factor"`
	LowFreq           *float64 `json:"low_freq_factor"`
	HighFreq          *float64 `json:"high_freq_factor"`
	OriginalPositions *float64 `json:"original_max_position_embeddings"`
	PartialRotary     *float64 `json:"partial_rotary_factor"`

	// Present when the parameters are given per kind of layer.
	Full    json.RawMessage `json:"full_attention"`
	Sliding json.RawMessage `json:"sliding_attention"`
}

// rope merges the two forms the way transformers does: rope_scaling wins over rope_parameters, and
// what they lack comes from the file's top level.
func (f *configFile) rope() (RopeConfig, error) {
	p := &ropeFile{}
	if f.RopeParameters != nil {
		p = f.RopeParameters
	}
	if f.RopeScaling != nil {
		p = f.RopeScaling
	}
	r := RopeConfig{Type: "default", Theta: 10000}
	for _, t := range []string{p.OldType, p.Type} {
		if t != "" {
			r.Type = t
		}
	}
	if len(p.Full) > 0 || len(p.Sliding) > 0 {
		return r, fmt.Errorf("rope_parameters per kind of layer are not supported")
	}
	if part := or(p.PartialRotary, f.PartialRotary); part != nil && *part != 1 {
		return r, fmt.Errorf("partial_rotary_factor %v is not supported, want 1", *part)
	}
	if theta := or(p.Theta, f.RopeTheta); theta != nil {
		r.Theta = *theta
	}
	if !(r.Theta > 0) || r.Theta > math.MaxFloat32 {
		return r, fmt.Errorf("rope_theta is %v, want a positive number", r.Theta)
	}
	return r, p.scaling(f, &r)
}

// scaling copies the parameters of the type of rotary embedding.
func (p *ropeFile) scaling(f *configFile, r *RopeConfig) error {
	type need struct {
		name string
		from *float64
		to   *float64
	}
	var needs []need
	switch r.Type {
	case "default":
	case "linear":
		needs = []need{{"factor", p.Factor, &r.Factor}}
	case "llama3":
		needs = []need{
			{"factor", p.Factor, &r.Factor},
			{"low_freq_factor", p.LowFreq, &r.LowFreq},
			{"high_freq_factor", p.HighFreq, &r.HighFreq},
			{"original_max_position_embeddings", or(p.OriginalPositions, f.OriginalPositions), &r.OriginalPositions},
		}
	default:
		return fmt.Errorf("rope_type %q is not supported, want default, linear or llama3", r.Type)
	}
	for _, n := range needs {
		if n.from == nil {
			return fmt.Errorf("rope_type %q needs %s", r.Type, n.name)
		}
		if !(*n.from > 0) || !finite(*n.from) {
			return fmt.Errorf("rope_type %q: %s is %v, want a positive number", r.Type, n.name, *n.from)
		}
		*n.to = *n.from
	}
	if r.Type == "llama3" && r.HighFreq <= r.LowFreq {
		return fmt.Errorf("rope_type llama3: high_freq_factor %v is not above low_freq_factor %v", r.HighFreq, r.LowFreq)
	}
	return nil
}

// check refuses parameters that are numbers, but whose frequencies in float32 are none, or turn nothing.
func (r *RopeConfig) check(headDim int) error {
	for i, f := range r.Rope(headDim).InvFreq {
		if !finite(float64(f)) || f <= 0 {
			return fmt.Errorf("rope_theta %v, rope_type %q with factor %v: frequency %d is %v", r.Theta, r.Type, r.Factor, i, f)
		}
	}
	return nil
}

// Rope returns the rotary embedding for heads of headDim values. Every step is rounded to float32 in
// the order transformers does it, so that the frequencies are its own to the bit or nearly so: a
// difference in the last bit grows with the position.
func (r *RopeConfig) Rope(headDim int) compute.Rope {
	inv := make([]float32, headDim/2)
	for i := range inv {
		exponent := float32(2*i) / float32(headDim)
		inv[i] = 1 / float32(math.Pow(float64(float32(r.Theta)), float64(exponent)))
		switch r.Type {
		case "linear":
			inv[i] /= float32(r.Factor)
		case "llama3":
			inv[i] = r.llama3(inv[i])
		}
	}
	return compute.Rope{InvFreq: inv, Scale: 1}
}

// llama3 slows frequencies that turn less than LowFreq times within OriginalPositions, leaves those
// that turn more than HighFreq times, and blends between.
func (r *RopeConfig) llama3(inv float32) float32 {
	factor, low, high := float32(r.Factor), float32(r.LowFreq), float32(r.HighFreq)
	wavelen := float32(1/inv) * float32(2*math.Pi)
	if wavelen > float32(r.OriginalPositions/r.LowFreq) {
		return inv / factor
	}
	if wavelen < float32(r.OriginalPositions/r.HighFreq) {
		return inv
	}
	turns := float32(1/wavelen) * float32(r.OriginalPositions)
	smooth := float32(turns-low) / float32(high-low)
	slow := float32(float32(1-smooth)*inv) / factor
	return slow + float32(smooth*inv)
}
