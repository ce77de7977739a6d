package server

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"grebe/engine"
	"grebe/reuse"
)

// Whoever tells checkpoints of a change holds them: none is freed meanwhile, and one that is being freed is told
// nothing.
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

// A server that stops does not wait for a checkpoint to be retired, which is told to end.
func TestStoppingEndsARetirement(t *testing.T) {
	retiring := make(chan struct{})
	w := newWorld(t, func(c *Config) {
		c.Models[0].Retire = func(ctx context.Context) error {
			close(retiring)
			<-ctx.Done()
			return ctx.Err()
		}
		next := c.Models[0]
		next.Version, next.Retire = "next", nil
		c.Loader = loaderFunc(func() *Model { m := next; return &m })
	})
	s := serve(t, w)
	if rec := w.ask("POST", "/v1/models/id:reload", `{}`); rec.Code != http.StatusAccepted {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	<-retiring
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

// A server that stops ends a reload when it begins to stop, not when all requests have ended: one of these may
// wait for the reload. That one is answered.
func TestStoppingAnswersWhoWaitsForAReload(t *testing.T) {
	retiring := make(chan struct{})
	w := newWorld(t, func(c *Config) {
		c.ShutdownTimeout = time.Minute
		c.Models[0].Retire = func(ctx context.Context) error {
			close(retiring)
			<-ctx.Done()
			return ctx.Err()
		}
		next := c.Models[0]
		next.Version, next.Retire = "next", nil
		c.Loader = loaderFunc(func() *Model { m := next; return &m })
	})
	s := serve(t, w)
	answered := make(chan string, 1)
	go func() {
		resp, err := client(t).Post(s.url("/v1/models/id:reload"), "application/json", strings.NewReader(`{"wait":true}`))
		if err != nil {
			answered <- err.Error()
			return
		}
		defer resp.Body.Close()
		answered <- resp.Status
	}()
	<-retiring
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if got := <-answered; !strings.HasPrefix(got, "202 ") {
		t.Errorf("who waits for a reload is answered %s", got)
	}
	if rec := w.ask("POST", "/v1/models/id:reload", `{}`); rec.Code != http.StatusServiceUnavailable {
		t.Errorf("a reload of a stopped server: %d %s", rec.Code, rec.Body)
	}
}

// A user who is deleted while a checkpoint is opened, which does not hear of changes yet, is dropped from it
// before it serves.
func TestDeletionsWhileACheckpointIsOpened(t *testing.T) {
	cw := newCacheWorldOver(t, near, 7, false, nil)
	var w *world
	w = newWorld(t, func(c *Config) {
		m := cw.model
		m.Name = "id"
		c.Models = []Model{m}
		c.Loader = loaderFunc(func() *Model {
			next := m
			next.Version = "next"
			next.Blend = &reuse.Blend{Unused: filepath.Join(t.TempDir(), "old.proto")}
			must(t, os.WriteFile(next.Blend.Unused, []byte("of u1"), 0o600))
			deleted := w.ask("DELETE", "/v1/users/u1", "") // what it read of u1 it has to forget
			if deleted.Code != http.StatusNoContent {
				t.Errorf("%d %s", deleted.Code, deleted.Body)
			}
			t.Cleanup(func() {
				if _, err := os.Stat(next.Blend.Unused); !os.IsNotExist(err) {
					t.Error("a checkpoint keeps what it read of a user who was deleted while it was opened")
				}
			})
			return &next
		})
	})
	if rec := w.ask("POST", "/v1/models/id:reload", `{"wait":true}`); rec.Code != http.StatusAccepted {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	if w.models["id"].deleted != nil {
		t.Error("deleted users are noted though nothing is opened")
	}
}
