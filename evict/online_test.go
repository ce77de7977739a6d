package evict

import (
	"os"
	"testing"
)

// online replays a trace with predictions that are learnt during the replay, and returns the hits.
func online(t testing.TB, tr *trace, name string, k int) (hits int) {
	t.Helper()
	f, now, used := NewForecaster(k), int64(0), 0
	keyOf, slotOf, late := make([]uint64, k), make([]int32, tr.distinct), make([]uint64, maxRefresh)
	for i := range slotOf {
		slotOf[i] = -1
	}
	p, err := New(name, Config{Slots: k, Bytes: int64(k), Refresh: func(slots []Slot, returns []int64) {
		for i, s := range slots {
			late[i] = keyOf[s]
		}
		f.Refresh(late[:len(slots)], now, returns)
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range tr.requests {
		now = int64(i)
		a := Access{Key: r.key, Bytes: 1, Now: now, Return: f.Access(r.key, now, r.ctx)}
		if f.Due() {
			f.Learn(now, TrainParams{})
		}
		s := slotOf[r.key]
		if s >= 0 {
			hits++
			p.Hit(s, a)
			continue
		}
		p.Miss(a)
		if s = int32(used); used < k {
			used++
		} else {
			s, _ = p.Victim(nil)
			slotOf[keyOf[s]] = -1
		}
		slotOf[r.key], keyOf[s] = s, r.key
		p.Insert(s, a)
	}
	return hits
}

// The default with predictions learnt online closes part of the gap between LRU and the optimum and never falls
// more than one percent of its hits behind LRU.
func TestDefaultLearnsOnline(t *testing.T) {
	atLeast := map[string]map[float64]float64{
		"mooncake-conversation": {.03: .08},
		"scarab-recs":           {.01: .40, .1: .17},
	}
	traces := []*trace{mooncake(t, "conversation")}
	shares, names := []float64{.03}, []string{"default"}
	if os.Getenv(fullEnv) != "" {
		traces = append(traces, mooncake(t, "synthetic"), scarab(t))
		shares, names = []float64{.01, .03, .1, .3}, []string{"default", "laru"}
	}
	for _, tr := range traces {
		for _, share := range shares {
			k := tr.share(share)
			lru, best := replay(t, make1(t, "lru", k), tr.keys, k, nil), Optimal(tr.keys, k)
			for _, name := range names {
				hits := online(t, tr, name, k)
				closed := float64(hits-lru) / float64(best-lru)
				t.Logf("%s at %v: %s hits %.4f, LRU %.4f, optimum %.4f, %.1f %% of the gap",
					tr.name, share, name, rate(hits, tr), rate(lru, tr), rate(best, tr), 100*closed)
				if name != "default" {
					continue
				}
				if want, ok := atLeast[tr.name][share]; ok && closed < want {
					t.Errorf("%s at %v: closed %.3f of the gap, want %.2f", tr.name, share, closed, want)
				}
				if float64(hits) < 0.99*float64(lru) {
					t.Errorf("%s at %v: %d hits, LRU %d", tr.name, share, hits, lru)
				}
			}
		}
	}
}

func rate(hits int, tr *trace) float64 { return float64(hits) / float64(len(tr.keys)) }
