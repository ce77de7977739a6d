package cuda

import (
	"fmt"
	"slices"
	"testing"

	"grebe/compute"
)

// manyKinds runs more kinds of batches than graphs are kept, several times, and returns the first results and those
// that differ from them.
func manyKinds(t *testing.T, d *device) (kinds int, different []string) {
	t.Helper()
	m := newSmall(t, d, 9)
	r, err := d.Open(m.shape, 128)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	first := map[string][]float32{}
	for turn := range 5 {
		for _, rows := range []int{3, 12, 30, 60, 128} {
			k := newKept(t, d.Memory(), &m.shape, 2, rows)
			for layers := 1; layers <= m.shape.Layers; layers++ {
				for _, keep := range []int{0, 1, 12, 30, 60} {
					if keep >= rows {
						continue
					}
					kind := fmt.Sprintf("%d rows, %d layers, %d kept", rows, layers, keep)
					if err := m.runSome(r, &k.batch, layers, keep); err != nil {
						t.Fatalf("%s: %v", kind, err)
					}
					if turn == 0 {
						first[kind] = m.out
					} else if !slices.Equal(m.out, first[kind]) {
						different = append(different, fmt.Sprintf("%s, turn %d", kind, turn))
					}
					if n := len(r.(*runner).graphs.list); n > maxGraphs {
						t.Fatalf("%d graphs are kept, want %d at most", n, maxGraphs)
					}
				}
			}
			k.free()
		}
	}
	return len(first), different
}

// runSome runs some layers of the model, of which the last keeps some rows, 0 for all.
func (m *small) runSome(r compute.Runner, b *compute.Batch, layers, keep int) error {
	if err := r.Begin(b); err != nil {
		return err
	}
	r.Embed(m.embed)
	var rows []int32
	for l := range layers {
		r.QKV(l, &m.attention)
		r.Attend(l)
		if l == layers-1 && keep > 0 {
			for i := range keep {
				rows = append(rows, int32(i))
			}
			r.Keep(rows)
		}
		r.Output(&m.attention)
		r.FFN(&m.ffn)
	}
	m.out = make([]float32, m.shape.Hidden)
	return r.Hidden(nil, []int32{0}, m.out)
}

// TestMoreKindsThanGraphs: batches of more kinds than graphs are kept come out the same, whether they are captured,
// replayed or captured anew. A runner keeps a bounded number of graphs, and gives all of them back.
func TestMoreKindsThanGraphs(t *testing.T) {
	g, d := simulate(t, Options{})
	kinds, _ := manyKinds(t, d)
	if kinds <= maxGraphs {
		t.Errorf("%d kinds of batches do not need more than %d graphs", kinds, maxGraphs)
	}
	if n := runnersHold(g)["graph"]; n != 0 {
		t.Errorf("%d graphs were not given back", n)
	}
}

// TestMoreKindsThanGraphsOnTheGPU is the same on a GPU, where results are computed.
func TestMoreKindsThanGraphsOnTheGPU(t *testing.T) {
	d := open(t, Options{FixedSplit: true})
	defer d.Close()
	if _, different := manyKinds(t, d.(*device)); len(different) > 0 {
		t.Errorf("other results than at first: %v", different)
	}
}
