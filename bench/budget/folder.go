package budget

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// mostExtra is the share of what a second copy of the model takes that a second configuration on its folder may take.
const mostExtra = 0.1

// Folder compares configurations on one folder with one configuration, and with models of their own.
type Folder struct {
	One    Taken `json:"one"`    // a configuration
	Same   Taken `json:"same"`   // two on its folder
	Copies Taken `json:"copies"` // two on copies of it
}

// Taken is the memory of a server after its models answered for the same users.
type Taken struct {
	OffHeap  float64 `json:"offheap"`  // bytes outside Go's heap: weights, activations, pools
	Resident float64 `json:"resident"` // of the process
	KV       float64 `json:"kv"`       // bytes of pools in use
	Reused   float64 `json:"reused"`   // share of the tokens of the last model's first requests that were cached
}

func (f *Folder) passed() bool {
	own := f.Copies.OffHeap - f.One.OffHeap
	return own > 0 && f.Same.OffHeap-f.One.OffHeap <= mostExtra*own && f.Same.KV <= f.One.KV*(1+mostExtra) &&
		f.Copies.KV > f.One.KV*1.5 && f.Same.Reused > 0.9 && f.Copies.Reused < 0.5
}

func (s *site) folder(ctx context.Context) (f *Folder, err error) {
	f = &Folder{}
	if f.One, err = s.taken(ctx, map[string]string{"one": "one"}); err != nil {
		return nil, err
	}
	if f.Same, err = s.taken(ctx, map[string]string{"one": "one", "two": "one"}); err != nil {
		return nil, err
	}
	f.Copies, err = s.taken(ctx, map[string]string{"one": "one", "two": "two"})
	return f, err
}

// taken starts a server and has each of its models answer for the same users, twice: a model that wakes up gets free
// memory at the next decision, a quarter of a second later.
func (s *site) taken(ctx context.Context, models map[string]string) (t Taken, err error) {
	server, err := s.start(ctx, models)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	for _, name := range names {
		if _, ok := models[name]; !ok {
			continue
		}
		first, err := askAll(ctx, server.URL, name)
		if err != nil {
			return t, err
		}
		t.Reused = first.reused()
		select {
		case <-ctx.Done():
			return t, ctx.Err()
		case <-time.After(time.Second):
		}
		if _, err := askAll(ctx, server.URL, name); err != nil {
			return t, err
		}
	}
	m, err := server.Metrics(ctx)
	t.OffHeap, t.Resident, t.KV = m["grebe_offheap_bytes"], m["process_resident_memory_bytes"], m["grebe_pool_used_bytes"]
	return t, err
}

// askAll has a model answer for ten users.
func askAll(ctx context.Context, url, model string) (all usage, err error) {
	client := &http.Client{}
	defer client.CloseIdleConnections()
	for u := range 10 {
		one, err := rank(ctx, client, url, model, u)
		if err != nil {
			return all, err
		}
		all.add(one)
	}
	return all, nil
}
