package disk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"grebe/plan"
)

// model is what a store should hold: of each key the generation put last, and whether it must be
// there.
type model struct {
	gen     map[int]int
	size    map[int]int
	used    []int // keys by time of use, the oldest first
	written []int
}

func (m *model) use(list *[]int, key int) {
	m.drop(list, key)
	*list = append(*list, key)
}

func (m *model) drop(list *[]int, key int) {
	for i, k := range *list {
		if k == key {
			*list = append((*list)[:i:i], (*list)[i+1:]...)
			return
		}
	}
}

// checkEvictions takes over what the store evicted, which must be what was used longest ago.
func (m *model) checkEvictions(t *rapid.T, s *Store) {
	here := false
	for _, k := range append([]int(nil), m.used...) {
		_, ok := s.Has(keyOf(k))
		if ok {
			here = true
			continue
		}
		if here && s.punch {
			t.Fatalf("key %d is gone though one used before it is there", k)
		}
		delete(m.gen, k)
		m.drop(&m.used, k)
		m.drop(&m.written, k)
	}
}

func TestAgainstModel(t *testing.T) {
	t.Parallel()
	for _, holes := range []bool{true, false} {
		t.Run(fmt.Sprintf("holes=%v", holes), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) { runModel(t, rt, newMemFolder(t, holes)) })
		})
	}
}

func runModel(t *testing.T, rt *rapid.T, d *memFolder) {
	opt := Options{
		Budget:  rapid.SampledFrom([]int64{mib, 2 * mib, 16 * mib}).Draw(rt, "budget"),
		Segment: rapid.SampledFrom([]int64{64 << 10, 256 << 10, mib}).Draw(rt, "segment"),
	}
	d.budget = opt.Budget
	s := mustOpen(t, d, opt)
	m := &model{gen: map[int]int{}, size: map[int]int{}}
	r := rand.New(rand.NewPCG(3, 3))
	gen := 0
	key := rapid.IntRange(0, 30)
	size := rapid.OneOf(rapid.IntRange(0, 5000), rapid.IntRange(60_000, 70_000), rapid.IntRange(0, 300_000))
	rt.Repeat(map[string]func(*rapid.T){
		"put": func(rt *rapid.T) {
			k, n := key.Draw(rt, "key"), size.Draw(rt, "size")
			gen++
			p := pattern(keyOf(k), 'p', gen, n)
			if err := s.Put(keyOf(k), pattern(keyOf(k), 'm', gen, n%777), cutUp(r, p)); err != nil {
				rt.Fatal(err)
			}
			m.gen[k], m.size[k] = gen, n
			m.use(&m.used, k)
			m.use(&m.written, k)
			m.checkEvictions(rt, s)
			if _, ok := s.Has(keyOf(k)); !ok {
				rt.Fatal("the record just put is not there")
			}
		},
		"get": func(rt *rapid.T) {
			k := key.Draw(rt, "key")
			meta, payload, ok := fetch(t, s, keyOf(k))
			g, want := m.gen[k]
			if ok != want {
				rt.Fatalf("key %d there: %v, want %v", k, ok, want)
			}
			if !ok {
				return
			}
			m.use(&m.used, k)
			if !bytes.Equal(meta, pattern(keyOf(k), 'm', g, m.size[k]%777)) ||
				!bytes.Equal(payload, pattern(keyOf(k), 'p', g, m.size[k])) {
				rt.Fatalf("key %d: wrong bytes", k)
			}
		},
		"delete": func(rt *rapid.T) {
			k := key.Draw(rt, "key")
			g, there := m.gen[k]
			if err := s.Delete(keyOf(k)); err != nil {
				rt.Fatal(err)
			}
			delete(m.gen, k)
			m.drop(&m.used, k)
			m.drop(&m.written, k)
			if b := pattern(keyOf(k), 'p', g, m.size[k]); there && len(b) >= 32 && bytes.Contains(d.all(), b[:32]) {
				rt.Fatalf("bytes of deleted key %d are in the files", k)
			}
		},
		"range": func(rt *rapid.T) {
			seen := map[plan.Key]bool{}
			s.Range(func(k plan.Key, meta []byte, n int64) bool { seen[k] = true; return true })
			if len(seen) != len(m.gen) {
				rt.Fatalf("range saw %d records, want %d", len(seen), len(m.gen))
			}
		},
		"reopen": func(rt *rapid.T) {
			if rapid.Bool().Draw(rt, "kill") {
				d = d.copyOf()
				d.budget = opt.Budget
			} else if err := s.Close(); err != nil {
				rt.Fatal(err)
			}
			s = mustOpen(t, d, opt)
			if st := s.Stats(); st.TornRecords != 0 {
				rt.Fatalf("torn records between operations: %+v", st)
			}
			m.used = append([]int(nil), m.written...)
			if s.punch {
				m.checkNothingEvicted(rt, s)
			}
			m.checkEvictions(rt, s)
		},
		"": func(*rapid.T) { books(t, s) },
	})
}

func (m *model) checkNothingEvicted(t *rapid.T, s *Store) {
	for k := range m.gen {
		if _, ok := s.Has(keyOf(k)); !ok {
			t.Fatalf("key %d was lost by reopening", k)
		}
	}
}
