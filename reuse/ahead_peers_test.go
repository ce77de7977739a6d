package reuse

import (
	"testing"
	"testing/synctest"

	"grebe/plan"
	"grebe/schedule"
)

// dear computes a token in 20 milliseconds and is idle.
type dear struct{ linear }

func (dear) Model() schedule.PrefillModel { return schedule.PrefillModel{Row: 20} }

// Items that another node has are fetched, the others are computed, and none is both. Where fetching is slower, all are
// computed.
func TestAPassFetchesWhatOthersHave(t *testing.T) {
	for _, mib := range []float64{1, 1e9} {
		synctest.Test(t, func(t *testing.T) {
			old, s := newShelf(t, "", 40, 8), newShelf(t, "", 40, 8)
			defer old.close()
			defer s.close()
			for i, id := range old.ids {
				if i%2 == 0 {
					delete(old.items, id) // the old owner has every other item
				}
			}
			old.pass()
			s.opt.Load = dear{}
			s.SetPeers(&neighbour{from: old.store, mib: mib})
			a, fetched, computed := s.Ahead(s.list()), 0, 0
			for {
				did, err := s.step(t.Context(), a)
				if err != nil {
					t.Fatal(err)
				}
				fetched, computed = fetched+did.Fetched, computed+did.Computed
				if did.Tokens != 8*did.Computed {
					t.Errorf("%d tokens of %d computed items", did.Tokens, did.Computed)
				}
				if did.Step >= schedule.AheadFull {
					break
				}
			}
			want := 20
			if mib > 1 {
				want = 0
			}
			if fetched != want || computed != 40-want || len(s.computed) != computed {
				t.Errorf("at %v ms per MiB %d items were fetched and %d computed, want %d fetched", mib, fetched, computed, want)
			}
			for id, it := range s.items {
				if s.tier(it.Tokens) == plan.Missing {
					t.Errorf("item %s is missing", id)
				}
			}
		})
	}
}

// However much the old owners have, filling a new map takes no more than half of the memory: what requests brought
// stays.
func TestFillingDoesNotDoubleMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, s := newShelf(t, "", 100, 256), newShelf(t, "", 100, 256)
		defer old.close()
		defer s.close()
		if did := old.pass(); did.Step != schedule.AheadFull {
			t.Fatalf("the old owner has room for all: %+v", did)
		}
		s.opt.Load = dear{}
		s.SetPeers(&neighbour{from: old.store, mib: 1})
		total, most, fetched := s.opt.Pool.Stats().Total, int64(0), 0
		for a := s.Ahead(s.list()); ; {
			did, err := s.step(t.Context(), a)
			if err != nil {
				t.Fatal(err)
			}
			most, fetched = max(most, s.opt.Pool.Stats().Used), fetched+did.Fetched
			if did.Step >= schedule.AheadFull {
				break
			}
		}
		if most > total/2 || fetched < 10 {
			t.Errorf("%d items were fetched, %d of %d bytes were used at most, want at most half", fetched, most, total)
		}
	})
}
