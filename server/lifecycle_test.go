package server

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"grebe/engine"
)

// Whoever tells checkpoints of a change holds them: none is freed meanwhile, and one that is being freed is told nothing.
func TestHoldCheckpoints(t *testing.T) {
	sl := &slot{now: newCheckpoint(&Model{})}
	next := newCheckpoint(&Model{})
	sl.bring(next)
	held := sl.hold()
	if len(held) != 2 {
		t.Fatalf("%d checkpoints are held, want 2", len(held))
	}
	sl.retire(next)
	select {
	case <-next.drained:
		t.Fatal("a checkpoint that is told of a change is freed")
	default:
	}
	again := sl.hold() // it is still there
	for _, c := range append(held, again...) {
		sl.release(c)
	}
	select {
	case <-next.drained:
	default:
		t.Fatal("a checkpoint that nobody holds is not freed")
	}
	if last := sl.hold(); len(again) != 2 || len(last) != 1 || last[0] != sl.now {
		t.Errorf("%d checkpoints are held while one drains, %d after it", len(again), len(last))
	}
}

// loaderFunc is a Loader.
type loaderFunc func() *Model

func (f loaderFunc) Open(context.Context, string, string, func(done, total int64)) (*Model, error) {
	return f(), nil
}

// A checkpoint that panics while it is loaded, or when it is tried, fails its reload alone.
func TestReloadThatPanics(t *testing.T) {
	for name, load := range map[string]loaderFunc{
		"loading": func() *Model { panic("on purpose") },
		"trying": func() *Model {
			return &Model{Name: "id", Prompt: newBuilder(t, bytesTokenizer{}), Vocab: vocab, Runner: runner(func(context.Context, *engine.Job) (*engine.Result, error) { panic("on purpose") })}
		},
	} {
		w := newWorld(t, func(c *Config) { c.Loader = load })
		if rec := w.ask("POST", "/v1/models/id:reload", `{"wait":true}`); rec.Code != http.StatusConflict || !strings.Contains(rec.Body.String(), "stays as it was") {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
		if rec := w.ask("POST", "/v1/rank", `{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}]}`); rec.Code != http.StatusOK {
			t.Errorf("%s: afterwards %d %s", name, rec.Code, rec.Body)
		}
	}
}
