package serve

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/reuse"
)

// hold keeps checkpoints from being freed while they receive a change. A checkpoint that is being freed receives
// none.
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

func (f loaderFunc) Open(context.Context, string, func(done, total int64)) (*Model, error) {
	return f(), nil
}

// A user who is deleted while a checkpoint is opened is removed from it before it serves, although it does not
// receive changes yet.
func TestDeletionsWhileACheckpointIsOpened(t *testing.T) {
	cw := newCacheWorldOver(t, near, 7, false, nil)
	var s *Service
	s = newFake(t, func(c *Config) {
		m := cw.model
		m.Name = "id"
		c.Models = []Model{m}
		c.Loader = loaderFunc(func() *Model {
			next := m
			next.Version = "next"
			next.Blend = &reuse.Blend{Unused: filepath.Join(t.TempDir(), "old.proto")}
			must(t, os.WriteFile(next.Blend.Unused, []byte("of u1"), 0o600))
			must(t, s.DeleteUser(t.Context(), "u1")) // it must forget what it read of u1
			t.Cleanup(func() {
				if _, err := os.Stat(next.Blend.Unused); !os.IsNotExist(err) {
					t.Error("a checkpoint keeps what it read of a user who was deleted while it was opened")
				}
			})
			return &next
		})
	})
	_, err := s.ReloadModel(t.Context(), &grebev1.ReloadModelRequest{Model: "id", Wait: true})
	must(t, err)
	if s.models["id"].deleted != nil {
		t.Error("deleted users are noted though nothing is opened")
	}
}
