package evict

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// request is one access of a trace; keys are dense, from 0.
type request struct {
	key uint64
	ctx Context
}

type trace struct {
	name     string
	requests []request
	keys     []uint64
	distinct int
}

func (tr *trace) add(key uint64, c Context, ids map[uint64]uint64) {
	id, ok := ids[key]
	if !ok {
		id = uint64(len(ids))
		ids[key] = id
		tr.distinct = len(ids)
	}
	tr.keys = append(tr.keys, id)
	tr.requests = append(tr.requests, request{id, c})
}

// share returns the capacity that is a share of the distinct keys.
func (tr *trace) share(s float64) int { return max(1, int(float64(tr.distinct)*s)) }

// openTrace finds a file of real traces beside the repository.
func openTrace(t testing.TB, name string) *os.File {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test")
		}
	}
	f, err := os.Open(filepath.Join(dir, "..", "shared", "data", "traces", name))
	if err != nil {
		t.Skip("no real trace in ../shared/data/traces: ", err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func scarab(t testing.TB) *trace {
	tr, ids := &trace{name: "scarab-recs"}, map[uint64]uint64{}
	r := bufio.NewReader(openTrace(t, "scarab-recs.trace"))
	for {
		var b [8]byte
		if n, err := r.Read(b[:1]); n == 0 && err != nil {
			return tr
		}
		for at := 1; at < 8; {
			n, err := r.Read(b[at:])
			if err != nil {
				t.Fatal("scarab-recs ends within a key: ", err)
			}
			at += n
		}
		tr.add(binary.BigEndian.Uint64(b[:]), Context{Bytes: 1, Cost: 1}, ids)
	}
}

// mooncake reads blocks in order of hash_ids. The turn of a request is one more than that of the request that last
// used its deepest known block.
func mooncake(t testing.TB, which string) *trace {
	tr, ids := &trace{name: "mooncake-" + which}, map[uint64]uint64{}
	turns := map[uint64]float32{}
	lines := bufio.NewScanner(openTrace(t, "mooncake-"+which+".jsonl"))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r struct {
			Input  float32  `json:"input_length"`
			Blocks []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		turn := float32(1)
		for _, b := range r.Blocks {
			if at, ok := turns[b]; ok {
				turn = at + 1
			}
		}
		for i, b := range r.Blocks {
			turns[b] = turn
			tr.add(b, Context{Turn: turn, Prompt: r.Input, Before: float32(i), After: float32(len(r.Blocks) - 1 - i)}, ids)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return tr
}

// replay drives a policy over a trace of entries of one size and returns the hits. predict returns the absolute return
// for request i; nil means unknown.
func replay(t testing.TB, p Policy, keys []uint64, k int, predict func(i int) int64) (hits int) {
	t.Helper()
	slotOf, keyOf, used := make([]int32, distinct(keys)), make([]uint64, k), 0
	for i := range slotOf {
		slotOf[i] = -1
	}
	for i, key := range keys {
		a := Access{Key: key, Bytes: 1, Now: int64(i)}
		if predict != nil {
			a.Return = predict(i)
		}
		s := slotOf[key]
		if s >= 0 {
			hits++
			p.Hit(s, a)
			continue
		}
		p.Miss(a)
		if used < k {
			s = int32(used)
			used++
		} else {
			v, ok := p.Victim(nil)
			if !ok {
				t.Fatalf("request %d: no victim in a full cache of %d", i, k)
			}
			s, slotOf[keyOf[v]] = v, -1
		}
		slotOf[key], keyOf[s] = s, key
		p.Insert(s, a)
	}
	return hits
}

func distinct(keys []uint64) int {
	n := uint64(0)
	for _, k := range keys {
		n = max(n, k+1)
	}
	return int(n)
}

func make1(t testing.TB, name string, k int) Policy {
	t.Helper()
	p, err := New(name, Config{Slots: k, Bytes: int64(k)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// published are hit rates measured with another simulator: LRU, SIEVE, optimum.
var published = map[string]map[float64][3]string{
	"scarab-recs": {
		.01: {".3471", ".4081", ".5335"}, .03: {".4576", ".4939", ".6401"}, .1: {".6060", ".6091", ".7503"},
		.3: {".7381", ".7300", ".7925"}},
	"mooncake-conversation": {
		.01: {".0523", ".0582", ".2463"}, .03: {".1252", ".0945", ".3479"}, .1: {".2784", ".1948", ".3664"},
		.3: {".3577", ".3486", ".3664"}},
	"mooncake-synthetic": {
		.01: {".0343", ".0179", ".1852"}, .03: {".1011", ".0577", ".3141"}, .1: {".2598", ".1761", ".5063"},
		.3: {".4876", ".4494", ".6396"}},
}

const fullEnv = "GREBE_CACHE_TABLES" // if set: whole tables instead of the part that takes a second

func checkPublished(t *testing.T, tr *trace, share float64) {
	t.Helper()
	k, n := tr.share(share), len(tr.keys)
	got := [3]int{replay(t, make1(t, "lru", k), tr.keys, k, nil), replay(t, make1(t, "sieve", k), tr.keys, k, nil),
		Optimal(tr.keys, k)}
	for i, name := range []string{"LRU", "SIEVE", "optimum"} {
		rate := fmt.Sprintf("%.4f", float64(got[i])/float64(n))[1:]
		if want := published[tr.name][share][i]; rate != want {
			t.Errorf("%s, cache of %v of the keys: %s hits %s, published %s", tr.name, share, name, rate, want)
		}
	}
}

func TestPublishedHitRates(t *testing.T) {
	shares := map[string][]float64{"scarab-recs": {.01}, "mooncake-conversation": {.03, .1},
		"mooncake-synthetic": {.01, .1}}
	for _, tr := range []*trace{scarab(t), mooncake(t, "conversation"), mooncake(t, "synthetic")} {
		which := shares[tr.name]
		if os.Getenv(fullEnv) != "" {
			which = []float64{.01, .03, .1, .3}
		}
		for _, share := range which {
			checkPublished(t, tr, share)
		}
	}
}
