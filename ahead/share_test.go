package ahead

import (
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Processes that divide a catalog compute each item once. Another division has each compute what is new to it. Hot
// items are computed by all.
func TestTheCatalogIsDivided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 90
		var parts, epoch atomic.Int64
		var all []*world
		for p := range 3 {
			w := newWorld(t, n, false)
			w.opt.Share = func(model string) Share {
				k := int(parts.Load())
				return Share{Wait: k == 0, Epoch: uint64(epoch.Load()), Mine: func(id string) bool {
					i, err := strconv.Atoi(id)
					return err == nil && i%max(k, 1) == p%max(k, 1)
				}}
			}
			w.start(t)
			defer w.end()
			all = append(all, w)
		}
		took := func() (out []int32) {
			for _, w := range all {
				out = append(out, w.took()...)
			}
			slices.Sort(out)
			return out
		}
		if err := all[0].Ask("m"); err != nil {
			t.Fatal(err)
		}
		if wait(time.Minute); len(took()) != 0 || all[0].Progress()[0].State != Waiting {
			t.Error("computed before the division is known")
		}
		parts.Store(3)
		epoch.Store(1)
		wait(time.Minute)
		if got := took(); len(got) != n || len(slices.Compact(got)) != n {
			t.Errorf("%d items were computed, want each of %d once", len(got), n)
		}
		if p := all[1].Progress()[0]; p.Items != n/3 || p.Computed != n/3 || p.State != Done {
			t.Errorf("progress %+v, want a third", p)
		}
		for _, w := range all {
			w.hot.Store(&[]Hot{{"0", 9}, {"1", 8}, {"2", 7}})
		}
		wait(time.Minute)
		if got := took(); !slices.Equal(got, []int32{0, 0, 1, 1, 2, 2}) {
			t.Errorf("computed %v, want three hot items on two more processes each", got)
		}
		parts.Store(2) // the third process's share goes to the first one
		epoch.Store(2)
		wait(time.Hour)
		if got := all[1].took(); len(got) != n/2-n/6 { // it has the odd ones of its third
			t.Errorf("%d items were computed, want what is new to it", len(got))
		}
	})
}

// Items that are hot for all are computed by a process that does not own them and whose requests do not name them. Each
// one that comes counts.
func TestHotItemsOfAllAreComputed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hot atomic.Pointer[[]string]
		hot.Store(&[]string{})
		w := newWorld(t, 100, false)
		w.opt.Share = func(string) Share {
			now := *hot.Load()
			return Share{Epoch: 1, Hot: now, Mine: func(id string) bool { return len(id) == 1 || slices.Contains(now, id) }}
		}
		w.start(t)
		defer w.end()
		if got := w.took(); len(got) != 10 {
			t.Fatalf("computed %v, want its own ten", got)
		}
		for _, c := range []struct {
			hot  []string
			want []int32
		}{
			{[]string{"70", "3", "50"}, []int32{70, 50}}, // 3 is its own
			{[]string{"70", "3", "50"}, nil},
			{[]string{"70", "60", "3", "50", "1", "2", "4", "5"}, []int32{60}},
			{[]string{"3"}, nil},
		} {
			hot.Store(&c.hot)
			wait(time.Minute)
			got := w.took()
			slices.Sort(got)
			slices.Sort(c.want)
			if !slices.Equal(got, c.want) {
				t.Errorf("hot items %v: computed %v, want %v", c.hot, got, c.want)
			}
		}
		if p := w.Progress()[0]; p.Items != 10 {
			t.Errorf("progress %+v", p)
		}
	})
}
