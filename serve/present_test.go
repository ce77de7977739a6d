package serve

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
)

// A user who is deleted during a request is not cached by it, and is not counted as hot.
func TestDeletionWinsOverRequestsUnderWay(t *testing.T) {
	w := newCacheWorldOver(t, near, 7, false, nil)
	m := w.model
	computed, goOn := make(chan struct{}), make(chan struct{})
	m.Runner = runner(func(ctx context.Context, job *engine.Job) (*engine.Result, error) {
		r, err := w.model.Runner.Do(ctx, job)
		computed <- struct{}{}
		<-goOn
		return r, err
	})
	s, err := New(Config{Models: []Model{m}, SLO: time.Minute})
	must(t, err)
	ann, id := w.tokens(50), int32(231)
	_, err = s.catalog.PutUser(&grebev1.User{Id: "ann", Tokens: ann})
	must(t, err)
	done := make(chan error)
	for _, known := range []bool{true, false} {
		user := &grebev1.User{Id: "ann"}
		if !known {
			user.Tokens = ann // the catalog no longer has her
		}
		go func() {
			_, err := s.Rank(t.Context(), &grebev1.RankRequest{
				Prefix: "user", User: user, Candidates: []*grebev1.Item{{Tokens: w.items[0], Identifier: &id}}})
			done <- err
		}()
		<-computed
		if err := s.DeleteUser(t.Context(), "ann"); (err == nil) != known {
			t.Errorf("deleting her answers %v; in the catalog: %v", err, known)
		}
		goOn <- struct{}{}
		must(t, <-done)
		if n := w.cachedOf("ann", ann); n > 0 {
			t.Errorf("in the catalog: %v: %d tokens of hers are cached after the deletion", known, n)
		}
		if hot := s.hotUsers.top(10); len(hot) > 0 {
			t.Errorf("in the catalog: %v: %v are asked for most", known, hot)
		}
	}
	if len(s.present.users) > 0 {
		t.Errorf("%v are still present", s.present.users)
	}
}

// A user whom only requests gave can be deleted, alone and by a line of a batch.
func TestUsersOfRequestsAreDeleted(t *testing.T) {
	w := newCacheWorldOver(t, near, 7, false, nil)
	bob, id := w.tokens(50), int32(231)
	for _, way := range []func() error{
		func() error { return w.cached.DeleteUser(t.Context(), "bob") },
		func() error {
			_, err := batch(t.Context(), w.cached, true, `{"delete":"bob"}`)
			return err
		},
	} {
		_, err := w.cached.Rank(t.Context(), &grebev1.RankRequest{Prefix: "user", User: &grebev1.User{Id: "bob", Tokens: bob},
			Candidates: []*grebev1.Item{{Tokens: w.items[0], Identifier: &id}}})
		must(t, err)
		if w.cachedOf("bob", bob) == 0 {
			t.Fatal("he is not cached")
		}
		answer := way()
		if n := w.cachedOf("bob", bob); n > 0 {
			t.Errorf("answers %v, and %d tokens of his are cached", answer, n)
		}
	}
}

// badErasure is a disk on which erasing fails for a while.
type badErasure struct {
	kv.Disk
	bad *atomic.Bool
}

func (b badErasure) Delete(keys ...plan.Key) error {
	if b.bad.Load() {
		return errors.New("bad sector")
	}
	return b.Disk.Delete(keys...)
}

// A deletion returns an error if the disk keeps KV of the user, and can be repeated.
func TestDeletionsThatFailAreToldOf(t *testing.T) {
	var bad atomic.Bool
	w := newCacheWorldOver(t, near, 7, false, nil, func(t kv.Disk) kv.Disk { return badErasure{t, &bad} })
	s := w.cached
	for _, id := range []string{"ann", "bob"} {
		_, err := s.catalog.PutUser(&grebev1.User{Id: id, Tokens: w.tokens(50)})
		must(t, err)
	}
	line := func() *grebev1.BatchResponse {
		resp, err := batch(t.Context(), s, true, `{"delete":"bob"}`)
		must(t, err)
		return resp
	}
	bad.Store(true)
	for range 2 { // the catalog has her, and then no longer
		if err := s.DeleteUser(t.Context(), "ann"); codeOf(err) != Unavailable {
			t.Errorf("deleting answers %v, want unavailable", err)
		}
		if got := line(); got.Failed != 1 || len(got.Errors) != 1 || !strings.Contains(got.Errors[0].Message, "ask again") {
			t.Errorf("deleting by a line answers %v", got)
		}
	}
	bad.Store(false)
	if err := s.DeleteUser(t.Context(), "ann"); codeOf(err) != NotFound {
		t.Errorf("deleting her at last answers %v, want not_found", err)
	}
	if got := line(); got.Failed != 0 || len(s.present.left) > 0 {
		t.Errorf("deleting him at last answers %v; left: %v", got, s.present.left)
	}
}

func (w *cacheWorld) cachedOf(user string, tokens []int32) int {
	e, _ := w.store.GetPrefix(w.cache.UserKey(user, nil), tokens)
	if e == nil {
		return 0
	}
	defer e.Release()
	return e.Len()
}
