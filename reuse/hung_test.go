package reuse

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"grebe/engine"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/plan"
	"grebe/schedule"
)

// hungDisk is a disk whose reads wait for the test if back is set.
type hungDisk struct {
	*disk.Store
	back chan struct{} // nil: it does not hang
}

func (h *hungDisk) Get(key plan.Key, place func([]byte, int64) ([][]byte, error)) ([]byte, bool, error) {
	return h.Store.Get(key, func(meta []byte, n int64) ([][]byte, error) {
		pieces, err := place(meta, n)
		if h.back != nil {
			<-h.back
		}
		return pieces, err
	})
}

// onHungDisk returns a machine with a user and an item that are only on disk.
func onHungDisk(t *testing.T) (m *machine, d *hungDisk, user, item []int32) {
	t.Helper()
	m = newMachine(t, 7, []int32{1, 2, 3}, "", false)
	m.opt.Load = linear{}
	below, err := disk.Open(t.TempDir(), disk.Options{Budget: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.close()
		if err := below.Close(); err != nil {
			t.Error(err)
		}
	})
	d = &hungDisk{Store: below}
	m.store.SetDisk(d)
	user, item = make([]int32, 2000), []int32{5, 6, 7}
	keep := func(kind plan.Kind, key plan.Key, n int, tokens []int32) {
		e, err := m.store.Reserve(kv.LayoutOf(kind), n, nil)
		if err != nil {
			t.Fatal(err)
		}
		m.store.Publish(kind, key, tokens, e)
		e.Release()
	}
	keep(plan.User, m.UserKey("u", user), len(user), user)
	keep(plan.Item, m.ItemKey(item), len(item), nil)
	m.store.Flush()
	for n := int(m.opt.Pool.Stats().Total); ; n /= 2 { // all make room
		if e, err := m.store.Reserve(kv.Exact, n/m.opt.Shape.ChunkBytes(1, false), nil); err == nil {
			e.Release()
			return m, d, user, item
		}
	}
}

// Rankings and generations wait for exact KV on a hung disk as long as there is time to compute it, and then compute
// it.
func TestAPrefixOnADiskThatHangs(t *testing.T) {
	m, d, user, item := onHungDisk(t)
	rank := func(ctx context.Context) (cached int) {
		v := m.Begin(&Request{UserID: "u", User: user, Items: [][]int32{item}, Policy: schedule.User})
		l, err := m.prompt.Rank(v.Order(), user, [][]int32{item})
		if err != nil {
			t.Fatal(err)
		}
		job := &engine.Job{Plan: l.Plan}
		v.Attach(ctx, &l, job)
		cached, _ = job.Cached(l.User)
		v.End(&l, nil)
		return cached
	}
	generate := func(ctx context.Context) (cached int) {
		v := m.Generate("u", user)
		l := m.prompt.Generate(user)
		job := &engine.Job{Plan: l.Plan}
		v.AttachPrompt(ctx, &l, job)
		cached, _ = job.Cached(l.User)
		v.EndPrompt(&l, nil)
		return cached
	}
	synctest.Test(t, func(t *testing.T) {
		d.back = make(chan struct{})
		const deadline = 120 * time.Millisecond // computing 2,000 tokens takes 20 of them
		for name, ask := range map[string]func(context.Context) int{"rank": rank, "generate": generate} {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			start := time.Now()
			if n := ask(ctx); n != 0 {
				t.Errorf("%s: %d tokens came from a disk that hangs", name, n)
			}
			if took := time.Since(start); took < 40*time.Millisecond || took > 60*time.Millisecond {
				t.Errorf("%s: it waited for %v of %v", name, took, deadline)
			}
		}
		close(d.back)
		synctest.Wait()
	})
	d.back = nil
	if n := rank(t.Context()); n != len(user)-1 && n != len(user) {
		t.Errorf("%d of %d tokens came from a disk that does not hang", n, len(user))
	}
}

// A cache can be settled and cleared although a read hangs. The read is left to itself, and leaves nothing behind when
// it ends.
func TestSettleOnADiskThatHangs(t *testing.T) {
	m, d, _, item := onHungDisk(t)
	key := m.ItemKey(item)
	synctest.Test(t, func(t *testing.T) {
		d.back = make(chan struct{})
		l := m.startLoad([]wanted{{key: key, tokens: 3, parts: []int{0}}, {key: key, tokens: 3, parts: []int{1}}})
		synctest.Wait()
		l.release()
		start := time.Now()
		if err := m.Clear(t.Context()); !errors.Is(err, errHangs) || time.Since(start) > settleWithin {
			t.Errorf("cleared on a disk that hangs: %v after %v", err, time.Since(start))
		}
		if err := m.Settle(); !errors.Is(err, errHangs) {
			t.Errorf("settled again: %v", err)
		}
		if m.opt.Pool.Stats().Used == 0 {
			t.Error("memory that is read into is free")
		}
		close(d.back)
		synctest.Wait()
	})
	m.store.Drain()
	if e, _ := m.store.Get(key); e != nil || m.store.Below(key) {
		t.Error("a block of a cleared cache is left")
	}
	if used := m.opt.Pool.Stats().Used; used != 0 {
		t.Errorf("%d bytes are in use", used)
	}
}
