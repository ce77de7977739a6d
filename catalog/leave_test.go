package catalog

import (
	"context"
	"errors"
	"runtime"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// A writer that waits for others leaves when its context ends, and changes nothing; those behind it are not held up.
func TestAWriterLeavesTheQueue(t *testing.T) {
	hold, told := make(chan struct{}), make(chan struct{}, 1)
	c := New(Options{OnChange: func(ch Change) {
		if ch.ID == "first" {
			told <- struct{}{}
			<-hold
		}
	}})
	put := func(ctx context.Context, id string) <-chan error {
		out := make(chan error, 1)
		go func() {
			out <- c.ApplyWithin(ctx, "", []Op{{PutItem: &grebev1.Item{Id: id, Tokens: []int32{1}}}})[0].Err
		}()
		return out
	}
	waiting := func(n int) {
		for {
			c.queueMu.Lock()
			have := len(c.queue)
			c.queueMu.Unlock()
			if have == n {
				return
			}
			runtime.Gosched()
		}
	}
	first := put(t.Context(), "first")
	<-told // it leads a round, and does not end
	ctx, leave := context.WithCancel(t.Context())
	second := put(ctx, "second")
	waiting(1)
	third := put(t.Context(), "third")
	waiting(2)
	leave()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("who leaves gets %v", err)
	}
	close(hold)
	if err := errors.Join(<-first, <-third); err != nil {
		t.Error(err)
	}
	for id, want := range map[string]bool{"first": true, "second": false, "third": true} {
		if _, ok := c.Item(id); ok != want {
			t.Errorf("item %s is there: %v", id, ok)
		}
	}
	if err := <-put(ctx, "fourth"); !errors.Is(err, context.Canceled) {
		t.Errorf("who comes too late gets %v", err)
	}
	if _, _, _, err := c.AppendEventsWithin(ctx, "u", []*grebev1.Event{{Item: "first"}}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("events that come too late: %v", err)
	}
}
