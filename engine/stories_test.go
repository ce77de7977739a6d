package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/engine/llama2ctest"
	"grebe/kv"
	"grebe/model"
	"grebe/plan"
	"grebe/pool"
)

// A real, trained Llama, converted from llama2.c, writes the story that llama2.c writes: greedy
// decoding, each step on the KV of the steps before.
func TestStories(t *testing.T) {
	data := filepath.Join("..", "..", "shared", "data", "stories260K")
	expected, err := os.ReadFile(filepath.Join(data, "expected.txt"))
	if err != nil {
		t.Skipf("no stories260K beside the project: %v", err)
	}
	dir := t.TempDir()
	if err := llama2ctest.Convert(filepath.Join(data, "stories260K.bin"), dir); err != nil {
		t.Fatal(err)
	}
	tok, err := llama2ctest.ReadTokenizer(filepath.Join(data, "tok512.bin"))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.TrimSuffix(string(expected), "\n")
	for name, dev := range cpuDevices(t) {
		t.Run(name, func(t *testing.T) {
			m, err := model.Open(dir, dev, model.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			p, err := pool.Over(dev.Memory(), 16<<20, 1024)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			e, err := New(m, dev, Options{MaxTokens: 64, Cache: kv.New(m.Shape(), p)})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if got := story(t, e, m.Vocab(), tok); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func story(t *testing.T, e *Engine, vocab int, tok *llama2ctest.Tokenizer) string {
	t.Helper()
	const steps = 200
	var text strings.Builder
	var have *kv.Entry
	tokens := []int32{llama2ctest.BOS}
	for range steps {
		job := &Job{
			Plan:     &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: tokens}}},
			Want:     []Want{{Segment: 0, IDs: ids(vocab)}},
			Segments: []Segment{{Entry: have, Keep: true}},
		}
		r, err := e.Do(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		if have != nil {
			have.Release()
		}
		have = r.Kept[0]
		best := 0
		for id, l := range r.Logits[0] {
			if l > r.Logits[0][best] {
				best = id
			}
		}
		if best == llama2ctest.BOS {
			break
		}
		text.WriteString(tok.Decode(tokens[len(tokens)-1], int32(best)))
		tokens = append(tokens, int32(best))
	}
	have.Release()
	return text.String()
}
