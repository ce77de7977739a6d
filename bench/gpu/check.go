package gpu

import (
	"fmt"
	"math"

	"grebe/compute"
	"grebe/compute/cuda"
	"grebe/compute/ref"
)

// trial is a batch that the device and the reference run.
type trial struct {
	name     string
	spec     spec
	segments []segment
}

// trials are small models on the forms of work that are timed: their attention is as wide as that of
// the large ones, and cut into parts as theirs is.
func trials() []trial {
	mixed := trial{"mixed segments", small, []segment{
		{tokens: 7, cached: 7}, {tokens: 100, start: 7, chunk: userChunk, sees: []int32{0}},
		{tokens: 9, start: 107, sees: []int32{0, 1}}, {tokens: 5, start: 107, sees: []int32{1}},
		{tokens: 8, start: 116, sees: []int32{0, 1, 2, 3}}}}
	user := trial{"user behind items", decoder("12/2 heads", 1, 256, 12, 2, 128, 256, 500), nil}
	var items []int32
	for i := range 40 {
		user.segments = append(user.segments, segment{tokens: 10, cached: 10})
		items = append(items, int32(i))
	}
	user.segments = append(user.segments, segment{tokens: 180, start: 10, chunk: userChunk, sees: items})
	beams := trial{"beams behind a prompt", decoder("16/8 heads", 1, 256, 16, 8, 128, 256, 500),
		[]segment{{tokens: 1000, cached: 1000}}}
	for range 64 {
		beams.segments = append(beams.segments, segment{tokens: 3, cached: 2, start: 1000, sees: []int32{0}})
	}
	return []trial{mixed, user, beams}
}

// checkAll compares the device with compute/ref on fresh random inputs.
func checkAll(d cuda.Device, seed uint64) ([]Check, error) {
	var out []Check
	for i, t := range trials() {
		c, err := t.run(d, seed+uint64(i))
		out = append(out, c)
		if err != nil {
			return out, err
		}
	}
	if err := checkSearch(d, seed); err != nil {
		return out, err
	}
	c, err := checkSelection(d, seed)
	return append(out, c), err
}

// run runs the trial on the device and on compute/ref.
func (t *trial) run(d compute.Device, seed uint64) (Check, error) {
	limit := 0.02 // of bf16 operands through two layers
	if t.spec.weights == compute.FP8 {
		limit = limitFP8
	}
	c := Check{Name: t.name, Limit: limit}
	var rows [][]float32
	for _, dev := range []compute.Device{ref.New(), d} {
		out, err := t.on(dev, seed)
		if err != nil {
			return c, fmt.Errorf("check %s: %w", t.name, err)
		}
		rows = append(rows, out)
	}
	c.Rows = len(rows[0]) / t.spec.shape.Hidden
	c.Error = distance(rows[1], rows[0])
	if !(c.Error <= limit) {
		return c, fmt.Errorf("%s: results differ from compute/ref by %.3g, limit %v (seed %d)", t.name, c.Error, limit, seed)
	}
	return c, nil
}

// on returns the hidden states of every third row.
func (t *trial) on(dev compute.Device, seed uint64) ([]float32, error) {
	m, err := newModel(dev, t.spec, seed)
	if err != nil {
		return nil, err
	}
	s, err := m.open(dev, 512)
	if err != nil {
		return nil, err
	}
	defer s.close()
	s.seed = seed
	c, err := s.plan("check", t.segments...)
	if err != nil {
		return nil, err
	}
	var wanted []int32
	for row := 0; row < len(c.batch.Tokens); row += 3 {
		wanted = append(wanted, int32(row))
	}
	out := make([]float32, len(wanted)*t.spec.shape.Hidden)
	times := 3 // alone, captured, replayed
	if _, slow := dev.(cuda.Device); !slow {
		times = 1
	}
	for range times {
		if err := s.layers(&c.batch, wanted); err != nil {
			return nil, err
		}
		if err := s.runner.Hidden(m.norm, wanted, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// distance is ‖got − want‖ / ‖want‖.
func distance(got, want []float32) float64 {
	var off, all float64
	for i := range want {
		diff := float64(got[i]) - float64(want[i])
		off, all = off+diff*diff, all+float64(want[i])*float64(want[i])
	}
	return math.Sqrt(off / all)
}
