package hstu

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"grebe/embed"
)

// slowStore gives rows after a second. Values are the row's number plus what was added.
type slowStore struct {
	embed.Store
	trips [][]uint64
	added float32
	fails bool
}

func (s *slowStore) RowBytes() int { return 8 }

func (s *slowStore) Gather(_ context.Context, keys []uint64, rows []byte, found []bool) error {
	s.trips = append(s.trips, slices.Clone(keys))
	values := make([]float32, 2*len(keys))
	for i, k := range keys {
		values[2*i], values[2*i+1], found[i] = float32(k)+s.added, 0, true
	}
	copy(rows, embed.Bytes(values))
	time.Sleep(time.Second)
	if s.fails {
		return errors.New("the store is away")
	}
	return nil
}

func (s *slowStore) Put(context.Context, []uint64, []byte) error { return nil }

// Rows that a waiting request needs are fetched before its batch, and once for all requests. A row that changes
// meanwhile is asked for again.
func TestHeldRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{}
		table, err := embed.NewTable(store, nil, embed.TableConfig{Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		s := FromTable(table).(*tableRows)
		defer s.Listen(s.held.changed)()
		batch := func(rows ...int32) (took time.Duration, first []float32) {
			began, out := time.Now(), make([]float32, 2*len(rows))
			if err := s.Gather(rows, out); err != nil {
				t.Fatal(err)
			}
			for i := range rows {
				first = append(first, out[2*i])
			}
			return time.Since(began), first
		}
		var release func()
		go func() { release = s.hold(t.Context(), []int32{1, 2, 3, 2}) }()
		synctest.Wait()
		other := s.hold(t.Context(), []int32{2, 3, 4, 3})
		synctest.Wait()
		if !slices.Equal(store.trips[0], []uint64{1, 2, 3}) || !slices.Equal(store.trips[1], []uint64{4}) {
			t.Errorf("the store was asked for %v", store.trips)
		}
		if took, got := batch(4, 1, 3, 2); took > 0 || !slices.Equal(got, []float32{4, 1, 3, 2}) {
			t.Errorf("the batch took %v and has rows %v", took, got)
		}
		if took, got := batch(3, 9); took != time.Second || !slices.Equal(got, []float32{3, 9}) {
			t.Errorf("with a row that is not held, the batch took %v and has rows %v", took, got)
		}
		store.added = 100
		if err := table.Put(t.Context(), []uint64{3}, make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		if _, got := batch(3, 2); !slices.Equal(got, []float32{103, 2}) {
			t.Errorf("after row 3 changed, the batch has rows %v", got)
		}
		release()
		if took, _ := batch(4, 2); took > 0 {
			t.Error("rows left that another request needs")
		}
		other()
		if len(s.held.rows) > 0 || s.held.asked.Load() != 0 {
			t.Errorf("%d rows are held for nobody, %d are asked for", len(s.held.rows), s.held.asked.Load())
		}
		late := make(chan func())
		go func() { late <- s.hold(t.Context(), []int32{5}) }()
		synctest.Wait()
		s.held.changed(nil) // while it is fetched
		release = <-late
		if took, _ := batch(5); took != time.Second {
			t.Error("a row that changed while it was fetched is held")
		}
		release()
		ctx, cancel := context.WithCancel(t.Context())
		go func() { late <- s.hold(t.Context(), []int32{7}) }()
		synctest.Wait()
		began := time.Now()
		go func() { late <- s.hold(ctx, []int32{7}) }()
		synctest.Wait()
		cancel()
		(<-late)()
		if took := time.Since(began); took > 0 {
			t.Errorf("a request that ended waited for %v", took)
		}
		(<-late)()
		s.held.most = 2
		store.trips = nil
		release = s.hold(t.Context(), []int32{20, 21, 22, 20, 23})
		if !slices.Equal(store.trips[0], []uint64{20, 21}) || len(s.held.rows) != 2 {
			t.Errorf("of at most two rows %v are held", store.trips)
		}
		if took, got := batch(23, 21); took != time.Second || !slices.Equal(got, []float32{123, 121}) {
			t.Errorf("with rows beyond the bound, the batch took %v and has rows %v", took, got)
		}
		release()
		if len(s.held.rows) > 0 {
			t.Errorf("%d rows are held for nobody", len(s.held.rows))
		}
		store.fails = true
		release = s.hold(t.Context(), []int32{6})
		if n := s.incomplete.Load(); n > 0 {
			t.Errorf("%d times incomplete before a batch needed the row", n)
		}
		if took, _ := batch(6); took > 0 || s.incomplete.Load() != 1 {
			t.Errorf("the batch took %v, %d times incomplete", took, s.incomplete.Load())
		}
		release()
	})
}
