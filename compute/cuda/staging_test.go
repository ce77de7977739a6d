package cuda

import (
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
)

// TestGathers: each layer is in its buffer when it runs, and each part is waited for before it is copied from, wherever
// the batch is launched in pieces.
func TestGathers(t *testing.T) {
	for _, layers := range []int{1, 2, 3, 4, 5, 7, 8, 9, 28, 80} {
		for _, buffers := range []int{1, 2, 3, 4, 15, 28, 80} {
			buffers = min(buffers, layers)
			for _, parts := range [][]part{resident, {{0, 0}, {2, 1}, {8, 2}}, {{0, inPlace}, {min(placeLayers, buffers), 0}}} {
				for piece := 1; piece <= layers; piece += 1 + layers/5 {
					g := gathers{layers: layers, buffers: buffers}
					g.begin(parts)
					in, waited := make([]int, buffers), map[int]bool{onDevice: true, inPlace: true}
					for at := 0; at < layers; at += piece {
						g.plan(func(yield func(int) bool) {
							for l := at; l < min(at+piece, layers) && yield(l); l++ {
							}
						})
						if s, ok := g.ahead(); ok {
							copyStep(t, &s, in, layers)
						}
						for l := at; l < min(at+piece, layers); l++ {
							if s := g.at(l); s != nil {
								waited[s.source] = true
								copyStep(t, s, in, layers)
							}
							if in[l%buffers] != l {
								t.Fatalf("%d layers, %d buffers, %v, %d at a time: layer %d finds layer %d", layers, buffers, parts, piece, l,
									in[l%buffers])
							}
							for i, p := range parts {
								if p.first <= l && (i+1 == len(parts) || l < parts[i+1].first) && !waited[p.source] {
									t.Fatalf("%d layers, %d buffers, %v, %d at a time: layer %d does not wait for part %d", layers, buffers, parts,
										piece, l, i)
								}
							}
						}
					}
					if g.waits() {
						t.Errorf("%d layers, %d buffers, %v, %d at a time: nobody waited for a part", layers, buffers, parts, piece)
					}
				}
			}
		}
	}
}

// copyStep notes which layers a step puts into which buffers.
func copyStep(t *testing.T, s *step, in []int, layers int) {
	t.Helper()
	if s.first+s.layers > layers {
		t.Fatalf("a step copies layers %d to %d of a model that has %d", s.first, s.first+s.layers-1, layers)
	}
	if s.layers < 1 || s.layers > len(in) {
		t.Fatalf("a step of %d layers into %d buffers", s.layers, len(in))
	}
	for l := s.first; l < s.first+s.layers; l++ {
		in[l%len(in)] = l
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
