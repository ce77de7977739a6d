package computetest

import (
	"errors"
	"fmt"

	"grebe/compute"
	"grebe/compute/ref"
)

// watched is what a pass yields that asks in every layer, the last one too, what attention rows received.
type watched struct {
	*result
	received [][]float32
	batch    *batch
}

// blendWatch: nothing stands in for anything, and what is asked for on the way changes nothing.
func blendWatch(d compute.Device, c config) error {
	r, m := newRandom(c.seed), newModel(c)
	natural := r.natural(0, 40, 30, 110, 9)
	natural[0].cached, natural[0].kv = 40, r.kv(&c.shape, 40)
	natural[2].chunks = chain(110, 64)
	plans := []plan{natural, r.causal(5, 20)}
	return m.agreeWatched(d, plans, everyLayer)
}

// pauses says after which layers' attention a pass asks what was received, and after which it has the device start.
type pauses struct {
	received, start func(layer int) bool
}

var everyLayer = pauses{func(int) bool { return true }, func(int) bool { return false }}

// layers says the same of each layer.
func (p pauses) layers(n int) (out [][2]bool) {
	for l := range n {
		out = append(out, [2]bool{p.received(l), p.start(l)})
	}
	return out
}

// agreeWatched compares a pass with pauses, and what rows received, with ref.
func (m *model) agreeWatched(d compute.Device, plans []plan, p pauses) error {
	got, err := m.watchOn(d, plans, p)
	if err != nil {
		return err
	}
	want, err := recall(func() (*watched, error) { return m.watchOn(ref.New(), plans, p) }, m, plans,
		p.layers(m.shape.Layers))
	if err != nil {
		return fmt.Errorf("on ref: %w", err)
	}
	for l := range want.received {
		if want.received[l] == nil {
			continue
		}
		if err := m.compareReceivedIn(l, got.batch, got.received[l], want.received[l]); err != nil {
			return fmt.Errorf("layer %d: %w", l, err)
		}
	}
	s := &m.shape
	limit := within(m.narrowHeads() * varLayers(s.Layers, m.dt, s.KV, 1.5))
	kv := limit
	kv.step = limitKV(m.config).step
	return errors.Join(compareKV(got.batch, want.batch, kv),
		m.compareResults(got.batch, got.result, want.result, limits{x: limit, normed: limit, logits: limit}))
}

func (m *model) watchOn(d compute.Device, plans []plan, p pauses) (out *watched, err error) {
	w, err := m.pack(d)
	if err != nil {
		return nil, err
	}
	r, err := d.Open(m.shape, rows(plans))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if !blends(r) {
		return nil, errNoBlender
	}
	out = &watched{batch: newBatch(d.Memory(), &m.shape, plans...)}
	if err := out.batch.begin(r); err != nil {
		return nil, err
	}
	keep := []int32{}
	for row := range out.batch.Tokens {
		if row%3 == 0 {
			keep = append(keep, int32(row))
		}
	}
	r.Embed(w.embed)
	for l := range m.layers {
		r.QKV(l, &w.attention[l])
		r.Attend(l)
		if s, ok := r.(compute.Starter); ok && p.start(l) {
			s.Start()
		}
		var received []float32
		if p.received(l) {
			received = make([]float32, len(out.batch.Tokens))
			if err := r.(compute.Blender).Received(received); err != nil {
				return nil, fmt.Errorf("received in layer %d: %w", l, err)
			}
		}
		if out.received = append(out.received, received); l == len(m.layers)-1 {
			r.Keep(keep)
		}
		r.Output(&w.attention[l])
		r.FFN(&w.ffn[l])
	}
	out.result, err = m.results(r, w, out.batch, keep)
	return out, err
}
