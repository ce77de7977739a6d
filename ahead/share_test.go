package ahead

import (
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Processes that divide a catalog compute each item once. Another division has each compute what is new to it. Hot items are computed
// by all.
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
