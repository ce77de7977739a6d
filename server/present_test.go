package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
)

// Whoever is deleted while a request of theirs is computed is not cached by it, nor listed among those who are asked for.
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
	s.SetReady(true)
	ann, id := w.tokens(50), int32(231)
	_, err = s.catalog.PutUser(&grebev1.User{Id: "ann", Tokens: ann})
	must(t, err)
	done := make(chan error)
	for _, known := range []bool{true, false} {
		user := &grebev1.User{Id: "ann"}
		if !known {
			user.Tokens = ann // the catalog does not have her any more
		}
		go func() {
			_, err := s.Rank(t.Context(), &grebev1.RankRequest{Prefix: "user", User: user, Candidates: []*grebev1.Item{{Tokens: w.items[0], Identifier: &id}}})
			done <- err
		}()
		<-computed
		if code := deleteUser(s, "ann"); (code == http.StatusNoContent) != known {
			t.Errorf("deleting her answers %d; in the catalog: %v", code, known)
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

// A user whom only requests named can be deleted: alone, and by a line of a batch.
func TestUsersOfRequestsAreDeleted(t *testing.T) {
	w := newCacheWorldOver(t, near, 7, false, nil)
	w.cached.SetReady(true)
	bob, id := w.tokens(50), int32(231)
	for _, way := range []func() int{
		func() int { return deleteUser(w.cached, "bob") },
		func() int { return told(w.cached, "POST", "/v1/users:batch", `{"delete":"bob"}`) },
	} {
		_, err := w.cached.Rank(t.Context(), &grebev1.RankRequest{Prefix: "user", User: &grebev1.User{Id: "bob", Tokens: bob},
			Candidates: []*grebev1.Item{{Tokens: w.items[0], Identifier: &id}}})
		must(t, err)
		if w.cachedOf("bob", bob) == 0 {
			t.Fatal("he is not cached")
		}
		code := way()
		if n := w.cachedOf("bob", bob); n > 0 {
			t.Errorf("answers %d, and %d tokens of his are cached", code, n)
		}
	}
}

// badErasure is a disk on which nothing can be erased for a while.
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

// Whoever deletes a user is told when the disk keeps something of them, and can ask again.
func TestDeletionsThatFailAreToldOf(t *testing.T) {
	var bad atomic.Bool
	w := newCacheWorldOver(t, near, 7, false, nil, func(t kv.Disk) kv.Disk { return badErasure{t, &bad} })
	s := w.cached
	s.SetReady(true)
	for _, id := range []string{"ann", "bob"} {
		_, err := s.catalog.PutUser(&grebev1.User{Id: id, Tokens: w.tokens(50)})
		must(t, err)
	}
	batch := func() string {
		rec := httptest.NewRecorder()
		s.Handler().ServeHTTP(rec, httptest.NewRequest("POST", "/v1/users:batch", strings.NewReader(`{"delete":"bob"}`)))
		return rec.Body.String()
	}
	bad.Store(true)
	for range 2 { // she is in the catalog, and then not any more
		if code := deleteUser(s, "ann"); code != http.StatusServiceUnavailable {
			t.Errorf("deleting answers %d, want 503", code)
		}
		if got := batch(); !strings.Contains(got, `"failed":1`) || !strings.Contains(got, "ask again") {
			t.Errorf("deleting by a line answers %s", got)
		}
	}
	bad.Store(false)
	if code := deleteUser(s, "ann"); code != http.StatusNotFound {
		t.Errorf("deleting her at last answers %d, want 404", code)
	}
	if got := batch(); !strings.Contains(got, `"failed":0`) || len(s.present.left) > 0 {
		t.Errorf("deleting him at last answers %s; left: %v", got, s.present.left)
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

func deleteUser(s *Server, id string) int { return told(s, "DELETE", "/v1/users/"+id, "") }

func told(s *Server, method, path, body string) int {
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, httptest.NewRequest(method, path, strings.NewReader(body)))
	return rec.Code
}
