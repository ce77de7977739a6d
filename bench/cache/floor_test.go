package cache

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/evict"
)

// The floor is judged at every request, not at the end: a stretch that is made up for later still fails.
func TestFloorLooksAtEveryRequest(t *testing.T) {
	const n = 20_000
	own, lru := make([]bool, n), make([]bool, n)
	for i := range n {
		own[i], lru[i] = true, true
	}
	for i := 6000; i < 6100; i++ { // 100 of 6,100 are missing
		own[i] = false
	}
	for i := 10_000; i < 10_200; i++ {
		lru[i] = false
	}
	worst, at, behind := worstOf(own, lru)
	if want := 6000.0 / 6100; worst != want || at != 6099 || behind != 100 {
		t.Errorf("worst %v at %d, %d behind; want %v at 6099, 100 behind", worst, at, behind, want)
	}
	// Ten may be missing, and before 5,000 requests any number.
	own, lru = make([]bool, n), make([]bool, n)
	for i := range 10 {
		lru[i] = true
	}
	if worst, _, behind := worstOf(own, lru); worst != 1 || behind != 10 {
		t.Errorf("ten missing hits: worst %v, %d behind", worst, behind)
	}
	lru[10] = true
	if worst, at, _ := worstOf(own, lru); worst != 0 || at != floorFrom {
		t.Errorf("eleven missing hits: worst %v at %d", worst, at)
	}
	if worst, _, _ := worstOf(own[:floorFrom], lru[:floorFrom]); worst != 1 {
		t.Errorf("before %d requests: worst %v", floorFrom, worst)
	}
}

// On small loops and sweeps the default is within the floor, and closes the gap of the loop.
func TestFloorOfGeneratedLoops(t *testing.T) {
	var out bytes.Buffer
	r, err := Run(t.Context(), Options{Traces: []string{"loop-short", "zigzag-short"}, Sizes: []float64{.03, .1},
		Parts: []string{"floor"}}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Floor) != 4 || !Passed(r.Checks) {
		t.Errorf("%d lines, checks %+v:\n%s", len(r.Floor), r.Checks, out.String())
	}
	if !strings.Contains(out.String(), "PASS") || strings.Contains(out.String(), "FAIL") {
		t.Errorf("printed\n%s", out.String())
	}
	for _, f := range r.Floor {
		if loop := f.Trace == "loop-short"; loop != (f.Want == loopGap) {
			t.Errorf("%s wants %v of the gap", f.Trace, f.Want)
		}
	}
}

// Every generated loop has the shape that its name says, and is the same every time.
func TestGeneratedLoops(t *testing.T) {
	for _, name := range loopTraces {
		a, b := loops(name), loops(name)
		if len(a.keys) < 9000 || a.distinct < 400 || !slices.Equal(a.keys, b.keys) {
			t.Errorf("%s: %d requests of %d keys", name, len(a.keys), a.distinct)
		}
	}
	for _, name := range pureLoops {
		tr := loops(name)
		for i, next := range evict.NextUses(tr.keys) {
			if next != evict.Never && next != int64(i+tr.distinct) {
				t.Fatalf("%s: request %d returns at %d", name, i, next)
			}
		}
	}
	var got []int
	zigzag(func(k int) { got = append(got, k) }, 3, 7)
	if want := []int{0, 1, 2, 1, 0, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("zigzag %v, want %v", got, want)
	}
	got = nil
	backForth(func(k int) { got = append(got, k) }, 4, 3, 2, 10)
	if want := []int{1, 2, 3, 2, 1, 2, 3, 0, 3, 2}; !slices.Equal(got, want) {
		t.Errorf("back and forth %v, want %v", got, want)
	}
	if loops("no such") != nil {
		t.Error("a trace of no name")
	}
}

// A user's own trace is read in each format, and what cannot be read is named with its line.
func TestOwnTraces(t *testing.T) {
	write := func(content string) string {
		path := filepath.Join(t.TempDir(), "own")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	numbers := string(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 7),
		9), 7))
	for _, c := range []struct {
		format, content string
		keys            []uint64 // dense
		failure         string
	}{
		{"text", "# keys\nuser/1,200\n\nuser/2 5\nuser/1\t7\n", []uint64{0, 1, 0}, ""},
		{"binary", numbers, []uint64{0, 1, 0}, ""},
		{"binary", numbers[:20], nil, "key 2"},
		{"arc", "5 3 0 1\n6 1 0 2\n", []uint64{0, 1, 2, 1}, ""},
		{"arc", "5 3\n6\n", nil, "line 2"},
		{"arc", "five 3\n", nil, "first key"},
		{"arc", "5 -3\n", nil, "number of keys"},
		{"arc", "5 99999999\n", nil, "at most"},
		{"mooncake", `{"input_length": 600, "hash_ids": [4, 8]}` + "\n", []uint64{0, 1}, ""},
		{"mooncake", "{}{\n", nil, "prompt 0"},
		{"text", "#\n", nil, "no requests"},
		{"csv", "1\n", nil, "is not one of"},
	} {
		tr, err := openFile(write(c.content), c.format)
		if c.failure != "" {
			if err == nil || !strings.Contains(err.Error(), c.failure) {
				t.Errorf("%s: %q: %v, want %q", c.format, c.content, err, c.failure)
			}
			continue
		}
		if err != nil || !slices.Equal(tr.keys, c.keys) || tr.name != "own" {
			t.Errorf("%s: %q: %v, %v", c.format, c.content, tr, err)
		}
	}
	if _, err := openFile(filepath.Join(t.TempDir(), "missing"), "text"); !os.IsNotExist(err) {
		t.Errorf("a missing file: %v", err)
	}
	var out bytes.Buffer
	text := strings.Repeat("a\nb\nc\nd\n", 2000)
	r, err := Run(t.Context(), Options{File: write(text), Sizes: []float64{.5}, Policies: []string{"lru", "default"}},
		&out)
	if err != nil || len(r.Floor) != 1 || len(r.Results) != 3 || r.Results[0].Trace != "own" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := (Options{Format: "csv"}).Validate(); err == nil {
		t.Error("an unknown format is valid")
	}
	if err := (Options{Parts: []string{"flor"}}).Validate(); err == nil {
		t.Error("an unknown part is valid")
	}
}

// Requests are described by what the cache holds at that moment, not by all that was ever seen.
func TestDescribedByWhatIsCached(t *testing.T) {
	tr := newTrace("t", true)
	prompt := func(tokens int32, blocks ...uint64) {
		tr.prompts, tr.tokens = append(tr.prompts, int32(len(tr.keys))), append(tr.tokens, tokens)
		for _, b := range blocks {
			tr.costs = append(tr.costs, float64(b))
			tr.add(b)
		}
	}
	prompt(2*blockTokens, 1, 2)
	prompt(3*blockTokens-12, 1, 2, 3) // the next turn
	prompt(4*blockTokens, 1, 2, 3, 4) // again, but block 1 was evicted
	held := map[uint64]bool{}
	d := newDescriber(tr, func(key uint64) bool { return held[key] })
	var all []evict.Context
	for i, key := range tr.keys {
		if i == 5 {
			held[0] = false
		}
		all = append(all, d.context(i))
		held[key] = true
	}
	if c := all[1]; c.Turn != 1 || c.Known != 0 || c.Behind != -1 || c.Before != blockTokens || c.After != 0 ||
		c.Bytes != blockTokens || c.Cost != 2 {
		t.Errorf("first prompt: %+v", c)
	}
	if c := all[4]; c.Turn != 2 || c.Behind != 0 || c.New != blockTokens-12 || c.Bytes != blockTokens-12 ||
		c.Since != 1.5849625 {
		t.Errorf("second prompt: %+v", c)
	}
	if c := all[5]; c.Turn != 1 || c.Known != 0 || c.Behind != -1 {
		t.Errorf("a prompt whose first block was evicted: %+v", c)
	}
	if c, want := newDescriber(loops("loop-short"), nil).context(0), evict.Single(0, 1, 1, 1); c != want {
		t.Errorf("a key: %+v", c)
	}
}
