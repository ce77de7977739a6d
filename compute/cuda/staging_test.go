package cuda

import (
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
)

// TestSteps: steps cover all layers in order, fit the scratch, and each part is waited for once, where it begins.
func TestSteps(t *testing.T) {
	parts := [][]step{{{first: 0, part: 0}, {first: 2, part: 1}, {first: 8, part: 2}}, {{first: 0, part: inPlace}, {first: 3, part: 0}}}
	for _, c := range []struct{ layers, most int }{{1, 1}, {2, 2}, {3, 1}, {28, 28}, {28, 15}, {28, 3}, {28, 1}, {80, 40}} {
		for _, p := range parts {
			next, waited := 0, map[int]int{}
			for _, s := range steps(c.layers, c.most, p) {
				if s.first != next || s.layers < 1 || s.layers > c.most {
					t.Errorf("%d layers, at most %d: step %+v after %d layers", c.layers, c.most, s, next)
				}
				next += s.layers
				if s.part >= 0 {
					waited[s.part]++
				}
			}
			if next != c.layers {
				t.Errorf("%d layers, at most %d: the steps have %d", c.layers, c.most, next)
			}
			for _, q := range p {
				if want := min(1, max(0, c.layers-q.first)); q.part >= 0 && waited[q.part] != want {
					t.Errorf("%d layers, at most %d: part %d is waited for %d times, want %d", c.layers, c.most, q.part, waited[q.part], want)
				}
			}
		}
	}
}

// TestStagingOrder: chunks that are fetched are found elsewhere, in the order of the batch, and others where they are.
func TestStagingOrder(t *testing.T) {
	shape := compute.Shape{Layers: 2, KVHeads: 1, HeadDim: 64, KV: compute.BF16}
	s := staging{dev: &device{}, shape: &shape, room: 1 << 20, bytes: 1 << 20}
	chunk := func(addr uint64, host bool) compute.Chunk {
		c := compute.Chunk{Addr: addr, Tokens: 4, Size: shape.ChunkBytes(4, false)}
		if host {
			c.Bytes = make([]byte, c.Size)
		}
		return c
	}
	chunks := []compute.Chunk{chunk(100, true), chunk(200, false), chunk(300, true), chunk(100, true), chunk(400, true)}
	for i := range chunks[:4] {
		if far(&chunks[i]) {
			s.add(&chunks[i])
		}
	}
	for i := range s.chunks {
		s.chunks[i].to += s.room
	}
	size := uint64(s.sizeOf(&chunks[0]))
	for i, want := range []uint64{1 << 20, 200, 1<<20 + size, 1<<20 + 2*size, 400} {
		if got := s.locate(&chunks[i]); got != want {
			t.Errorf("chunk %d is found at %d, want %d", i, got, want)
		}
	}
}

// fromHost is a GPU whose KV lies in the host's memory.
type fromHost struct{ Device }

func (d fromHost) Memory() compute.Memory { return d.Device.Memory().Host() }

// TestConformanceFromHost: KV in pinned memory, fetched beside the computation or used in place, gives what KV in
// the GPU's memory gives.
func TestConformanceFromHost(t *testing.T) {
	for _, c := range []struct {
		name    string
		inPlace bool
		opt     Options
	}{{"graphs", false, Options{}}, {"one by one", false, Options{NoGraphs: true}}, {"in place", true, Options{}}} {
		computetest.Run(t, c.name, func(t *testing.T) compute.Device {
			d := open(t, c.opt)
			d.UseInPlace(c.inPlace)
			return fromHost{d}
		}, computetest.Options{Aside: true})
	}
}
