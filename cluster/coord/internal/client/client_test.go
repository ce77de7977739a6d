package client

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"grebe/cluster/coord"
)

// Whenever the reader has taken all that is due, its view is what the coordinator has, or was when it was lost.
func TestQueueRandom(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var q Queue
		truth, view := map[string]coord.Entry{}, map[string]coord.Entry{}
		lost := true // until the first listing
		for n := range int64(300) {
			e := coord.Entry{Key: fmt.Sprint(rng.IntN(4)), Version: n + 1}
			switch k := rng.IntN(12); {
			case k < 4:
				truth[e.Key] = e
				if !lost {
					q.Put(e)
				}
			case k < 6:
				delete(truth, e.Key)
				if !lost {
					q.Delete(e.Key)
				}
			case k == 6 && !lost:
				lost = true
				q.Lost()
			case k == 7:
				lost = false
				entries := []coord.Entry{}
				for _, e := range truth {
					entries = append(entries, e)
				}
				q.Reset(entries)
			case k < 10:
				if e, ok := q.Head(); ok {
					e.Apply(view)
					q.Pop()
				}
			default:
				var last coord.Event
				taken := 0
				for ; ; taken++ {
					e, ok := q.Head()
					if !ok {
						break
					}
					e.Apply(view)
					q.Pop()
					last = e
				}
				if !lost && !maps.EqualFunc(view, truth, func(a, b coord.Entry) bool { return reflect.DeepEqual(a, b) }) {
					t.Fatalf("seed %d, step %d: the view is %v, want %v", seed, n, view, truth)
				}
				if lost && taken > 0 && last.Kind != coord.Lost {
					t.Fatalf("seed %d, step %d: lost, and the last event is a %v", seed, n, last.Kind)
				}
			}
		}
	}
}

func TestKeep(t *testing.T) {
	const ttl = 9 * time.Second
	for name, c := range map[string]struct {
		renew func(n int, ctx context.Context) error // renewal n
		want  time.Duration
	}{
		"the coordinator says so": {func(n int, _ context.Context) error {
			if n == 2 {
				return coord.ErrLeaseLost
			}
			return nil
		}, ttl},
		"no answer": {func(n int, ctx context.Context) error { <-ctx.Done(); return coord.ErrUnavailable }, ttl},
		"errors":    {func(int, context.Context) error { return coord.ErrUnavailable }, ttl},
		"answers after a pause": {func(n int, _ context.Context) error {
			time.Sleep(ttl + time.Second)
			return nil
		}, ttl/3 + ttl + time.Second},
		"one error": {func(n int, ctx context.Context) error {
			if n == 0 {
				return coord.ErrUnavailable
			}
			if n < 3 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}, ttl/3 + ttl/10 + ttl/3 + ttl},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, n := time.Now(), -1
				Keep(t.Context(), ttl, start, func(ctx context.Context) error { n++; return c.renew(n, ctx) })
				if got := time.Since(start); got != c.want {
					t.Errorf("lost after %v, want %v", got, c.want)
				}
			})
		})
	}
}
