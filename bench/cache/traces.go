package cache

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// trace is requests for keys, which are dense, from 0. Requests of one prompt stand together.
type trace struct {
	name     string
	real     bool
	keys     []uint64
	costs    []float64 // milliseconds that a hit saves; nil: the same for all
	prompts  []int32   // first request of each prompt; nil: each request is one
	tokens   []int32   // of each prompt
	distinct int
	ids      map[uint64]uint64
}

func newTrace(name string, real bool) *trace {
	return &trace{name: name, real: real, ids: map[uint64]uint64{}}
}

func (t *trace) add(key uint64) {
	id, ok := t.ids[key]
	if !ok {
		id = uint64(len(t.ids))
		t.ids[key] = id
		t.distinct = len(t.ids)
	}
	t.keys = append(t.keys, id)
}

// entries is how many a cache of a share of the distinct keys holds.
func (t *trace) entries(share float64) int { return max(1, int(float64(t.distinct)*share)) }

// realTraces are those of the data folder, by name.
var realTraces = []string{"scarab-recs", "mooncake-conversation", "mooncake-synthetic"}

// madeTraces are generated, by name.
var madeTraces = []string{"zipf", "scans", "loops", "drift"}

// Traces returns the names of all traces.
func Traces() []string { return slices.Concat(realTraces, madeTraces, loopTraces) }

// open reads or makes a trace.
func open(dir, name string) (*trace, error) {
	switch name {
	case "scarab-recs":
		return readKeys(name, filepath.Join(dir, name+".trace"))
	case "mooncake-conversation", "mooncake-synthetic":
		return readPrompts(name, filepath.Join(dir, name+".jsonl"))
	case "zipf", "scans", "loops", "drift":
		return generate(name), nil
	}
	if t := loops(name); t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("trace %q is not one of %q", name, Traces())
}

func readKeys(name, path string) (*trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, r := newTrace(name, true), bufio.NewReaderSize(f, 1<<16)
	for {
		var b [8]byte
		if _, err := io.ReadFull(r, b[:]); errors.Is(err, io.EOF) {
			return t, nil
		} else if err != nil {
			return nil, fmt.Errorf("read %s: key %d: %w", path, len(t.keys), err)
		}
		t.add(binary.BigEndian.Uint64(b[:]))
	}
}

// readPrompts reads blocks in order of hash_ids. The length of the output is left out, since rankings have none.
func readPrompts(name, path string) (*trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t := newTrace(name, true)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r prompt
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("read %s: prompt %d: %w", path, len(t.prompts), err)
		}
		t.prompts, t.tokens = append(t.prompts, int32(len(t.keys))), append(t.tokens, r.Input)
		for i, b := range r.Blocks {
			t.costs = append(t.costs, blockTokens*(prefill.Row+prefill.Key*blockTokens*(float64(i)+.5)))
			t.add(b)
		}
	}
	return t, lines.Err()
}

// prompt is a line of a trace.
type prompt struct {
	Input  int32    `json:"input_length"`
	Blocks []uint64 `json:"hash_ids"`
}

const madeRequests, madeKeys = 200_000, 20_000

// generate makes a trace:
//
//	zipf   independent requests, popularity of rank r as 1/r^0.9
//	scans  the same, and every 10,000 requests a run over 4,000 keys that never come again
//	loops  three loops over 500, 2,500 and 6,000 keys, taking turns of 100 requests
//	drift  as zipf, but a hundredth of the ranks changes its keys every 1,000 requests
func generate(name string) *trace {
	r := rand.New(rand.NewPCG(77, 7))
	t, pick := newTrace(name, false), zipf(r, madeKeys, 0.9)
	one := t.add
	ranks := make([]uint64, madeKeys)
	for i := range ranks {
		ranks[i] = uint64(i)
	}
	fresh := uint64(madeKeys)
	loops, at := []uint64{500, 2500, 6000}, make([]uint64, 3)
	for i := 0; len(t.keys) < madeRequests; i++ {
		switch {
		case name == "loops":
			l := i / 100 % len(loops)
			one(uint64(l)<<32 + at[l]%loops[l])
			at[l]++
			continue
		case name == "scans" && i%10000 == 9999:
			for range 4000 {
				one(fresh)
				fresh++
			}
		case name == "drift" && i%1000 == 999:
			for range madeKeys / 100 {
				ranks[r.IntN(len(ranks))] = fresh
				fresh++
			}
		}
		one(ranks[pick()])
	}
	return t
}

// zipf returns a source of ranks below n.
func zipf(r *rand.Rand, n int, exponent float64) func() int {
	sums, sum := make([]float64, n), 0.0
	for i := range sums {
		sum += math.Pow(float64(i+1), -exponent)
		sums[i] = sum
	}
	return func() int {
		u, lo, hi := r.Float64()*sum, 0, n-1
		for lo < hi {
			if mid := (lo + hi) / 2; sums[mid] < u {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		return lo
	}
}
