package reuse

import (
	"context"
	"fmt"
	"testing"

	"grebe/engine"
	"grebe/plan"
)

// An item that does not fit the model does not prevent the others from being computed ahead, wherever it is in the
// catalog.
func TestAnItemThatIsTooLongIsLeftOut(t *testing.T) {
	for name, long := range map[string]int{"alone": 5000, "among others": 600} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 7, []int32{1, 2, 3}, "", false)
			do := func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
				for _, s := range j.Plan.Segments {
					if long < 1024 && len(s.Tokens) == long {
						return nil, fmt.Errorf("%w: as on a machine with small batches", engine.ErrTooLarge)
					}
				}
				return m.engine.Do(ctx, j)
			}
			items := [][]int32{{5, 6, 7}, make([]int32, long), {8, 9}}
			looked := 0
			computed, tooLong, err := m.Precompute(t.Context(), do, items, func(n, _ int) { looked += n })
			if err != nil || computed != 2 || tooLong != 1 || looked != 3 {
				t.Errorf("%d of 3 items looked at, %d computed and %d too long, %v; want 3, 2 and 1", looked, computed, tooLong,
					err)
			}
			var have [3]int32
			m.store.Peek([]plan.Key{m.ItemKey(items[0]), m.ItemKey(items[1]), m.ItemKey(items[2])}, have[:])
			if have != [3]int32{3, 0, 2} {
				t.Errorf("tokens in the cache: %v, want those of the items that fit", have)
			}
		})
	}
}
