package server

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"grebe/engine"
	"grebe/serve"
)

// loaderFunc is a Loader.
type loaderFunc func() *serve.Model

func (f loaderFunc) Open(context.Context, string, func(done, total int64)) (*serve.Model, error) {
	return f(), nil
}

// A checkpoint that panics while it is loaded or checked fails only its reload.
func TestReloadThatPanics(t *testing.T) {
	for name, load := range map[string]loaderFunc{
		"loading": func() *serve.Model { panic("on purpose") },
		"trying": func() *serve.Model {
			return &serve.Model{Name: "id", Prompt: newBuilder(t, bytesTokenizer{}), Vocab: vocab,
				Runner: runnerDo(func(context.Context, *engine.Job) (*engine.Result, error) { panic("on purpose") })}
		},
	} {
		w := newWorld(t, func(c *setup) { c.Loader = load })
		if rec := w.ask("POST", "/v1/models/id:reload", `{"wait":true}`); rec.Code != http.StatusConflict ||
			!strings.Contains(rec.Body.String(), "stays as it was") {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
		if rec := w.ask("POST", "/v1/rank",
			`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"}]}`); rec.Code != http.StatusOK {
			t.Errorf("%s: afterwards %d %s", name, rec.Code, rec.Body)
		}
	}
}

// A server that stops does not wait for a checkpoint to be retired. It cancels the retirement.
func TestStoppingEndsARetirement(t *testing.T) {
	retiring := make(chan struct{})
	w := newWorld(t, func(c *setup) {
		c.Models[0].Retire = func(ctx context.Context) error {
			close(retiring)
			<-ctx.Done()
			return ctx.Err()
		}
		next := c.Models[0]
		next.Version, next.Retire = "next", nil
		c.Loader = loaderFunc(func() *serve.Model { m := next; return &m })
	})
	s := listening(t, w)
	if rec := w.ask("POST", "/v1/models/id:reload", `{}`); rec.Code != http.StatusAccepted {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	<-retiring
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

// A server that stops ends a reload at once, not after the last request: a request may wait for the reload. That
// request is answered.
func TestStoppingAnswersWhoWaitsForAReload(t *testing.T) {
	retiring := make(chan struct{})
	w := newWorld(t, func(c *setup) {
		c.ShutdownTimeout = time.Minute
		c.Models[0].Retire = func(ctx context.Context) error {
			close(retiring)
			<-ctx.Done()
			return ctx.Err()
		}
		next := c.Models[0]
		next.Version, next.Retire = "next", nil
		c.Loader = loaderFunc(func() *serve.Model { m := next; return &m })
	})
	s := listening(t, w)
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
