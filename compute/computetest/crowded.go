package computetest

import (
	"errors"
	"fmt"
	"testing"

	"grebe/compute"
)

// CrowdedScratch is what the rows of Crowded's batches take in a layer of bf16 keys and values, in bytes, where rows
// are counted in whole 32s: devices that hold some layers at a time are tested with a multiple of it.
const CrowdedScratch = 32 * 2 * 2 * 64 * 2

// crowdedShape has more layers than a device may hold at a time.
func crowdedShape(kv compute.DType) compute.Shape { return shape(6, 64, 4, 2, 64, 48, kv) }

// crowdedChecks: many cached segments, and batches that are interrupted in the middle of a model.
func crowdedChecks() []check {
	var out []check
	never := func(int) bool { return false }
	always := func(int) bool { return true }
	at := func(n int) func(int) bool { return func(l int) bool { return l == n } }
	for i, p := range []struct {
		name   string
		pauses pauses
		placed bool
	}{
		{"at once", pauses{never, never}, false},
		{"received in every layer", everyLayer, false},
		{"received in the middle", pauses{at(2), never}, false},
		{"started in the middle", pauses{never, at(3)}, false},
		{"started after every layer", pauses{never, always}, false},
		{"started and received", pauses{at(4), at(1)}, false},
		{"received behind Place", everyLayer, true},
	} {
		for j, kv := range []compute.DType{compute.BF16, compute.FP8} {
			if p.placed && kv == compute.FP8 {
				continue // of which nothing is placed
			}
			c := config{seed: uint64(8000 + 10*i + j), shape: crowdedShape(kv), dt: compute.BF16, src: compute.BF16,
				headed: true, sharp: 1}
			name := fmt.Sprintf("crowded/%s/seed%d/kv_%v", p.name, c.seed, kv)
			out = append(out, check{name, func(d compute.Device) error {
				if err := crowded(d, c, p.pauses, p.placed); err != nil {
					return fmt.Errorf("%v: %w", c, err)
				}
				return nil
			}})
		}
	}
	return out
}

// Crowded runs the cases of many cached segments alone.
func Crowded(t *testing.T, d compute.Device) {
	for _, c := range crowdedChecks() {
		t.Run(c.name, func(t *testing.T) {
			switch err := c.on(d); {
			case errors.Is(err, errNoBlender):
				t.Skip(err)
			case err != nil:
				t.Error(err)
			}
		})
	}
}

// crowded compares with ref: 90 cached segments, of which rows see all, and a segment of a chain. It runs three times
// on one runner, so that devices repeat what they recorded.
func crowded(d compute.Device, c config, p pauses, placed bool) error {
	r, m := newRandom(c.seed), newModel(c)
	items := make([]int, 90)
	for i := range items {
		items[i] = 1 + i%3
	}
	one := r.itemFirst(0, 2, 14, items, 2)
	for i := range items {
		g := &one[1+i]
		g.cached, g.kv = len(g.tokens), r.kv(&c.shape, len(g.tokens))
	}
	one[0].cached, one[0].kv = 2, r.kv(&c.shape, 2)
	user := &one[len(one)-2]
	user.chunks = chain(14, 4)
	if !placed {
		user.cached, user.kv = 5, r.kv(&c.shape, 14)
	}
	plans := []plan{one, r.causal(3, 9)}
	if !placed {
		return m.agreeWatched(d, plans, p)
	}
	return m.receivedBehindPlace(d, plans, len(one)-2)
}

// receivedBehindPlace: what replaces rows that are computed all the same changes nothing, and is not what they are
// taken for.
func (m *model) receivedBehindPlace(d compute.Device, plans []plan, segment int) (err error) {
	want, err := m.watchOn(d, plans, everyLayer)
	if err != nil {
		return err
	}
	w, err := m.pack(d)
	if err != nil {
		return err
	}
	r, err := d.Open(m.shape, rows(plans))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	const from = 3
	x := &blend{plans: plans, layer: from - 1, sources: []source{{kv: newRandom(m.seed).kv(&m.shape, 8), tokens: 8}},
		parts: []standIn{{source: 0, segment: segment, at: 2, tokens: 6, first: 1, turn: 4}}}
	l, err := x.lay(d.Memory(), &m.shape)
	if err != nil {
		return err
	}
	defer l.free()
	if err := l.batch.begin(r); err != nil {
		return err
	}
	b := r.(compute.Blender)
	b.Embed(w.embed)
	received := make([]float32, len(l.batch.Tokens))
	for layer := range m.layers {
		b.QKV(layer, &w.attention[layer])
		b.Attend(layer)
		if layer == x.layer {
			b.Place(from, l.parts)
		}
		if err := b.Received(received); err != nil {
			return fmt.Errorf("received in layer %d: %w", layer, err)
		}
		if err := m.compareReceivedIn(layer, l.batch, received, want.received[layer]); err != nil {
			return fmt.Errorf("layer %d of a batch with KV placed from layer %d on: %w", layer, from, err)
		}
		b.Output(&w.attention[layer])
		b.FFN(&w.ffn[layer])
	}
	return b.Hidden(nil, []int32{0}, make([]float32, m.shape.Hidden))
}
