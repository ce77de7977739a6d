package rank

import (
	"grebe/compute"
	"grebe/pool"
	"grebe/workload"
)

// The memory that the paper gives to KV: 150 GB on each of four machines (section 6.4; section 6.2
// says "a fixed size" only), at the bytes per token of its first model, Qwen2-1.5B (Table 2).
const (
	paperBytes = 4 * 150e9
	paperToken = 28672
)

// paperShare is the share of the users' tokens for which the paper's memory has room beside all
// items, at Table 1's sizes: all of Games, 46 % of Beauty, 2 % of Books, 0.07 % of Industry.
func paperShare(name string) (float64, error) {
	s, err := workload.Named(name, workload.Scale{})
	if err != nil {
		return 0, err
	}
	left := paperBytes/paperToken - float64(s.Items)*s.ItemTokens.Mean
	return min(max(left/(float64(s.Users)*s.UserTokens.Mean), 0), 1), nil
}

// budget is the memory of a cache.
type budget struct {
	items, users int64 // tokens there is room for
	bytes        int64
}

// newBudget counts all items' tokens and a share of all users', at least one user of the longest.
func newBudget(w *workload.Workload, shape *compute.Shape, share float64) budget {
	var b budget
	spec := w.Spec()
	for j := range spec.Items {
		b.items += int64(w.ItemLen(j))
	}
	total := int64(0)
	for i := range spec.Users {
		total += int64(w.UserLen(i, 0))
	}
	b.users = max(int64(share*float64(total)), int64(spec.UserTokens.Max))
	b.bytes = (b.items + b.users) * int64(shape.ChunkBytes(1, false))
	return b
}

// newPool maps a pool with pages that a token's KV fills.
func newPool(bytes int64, shape *compute.Shape) (*pool.Pool, error) {
	return pool.New(bytes, pageFor(shape))
}

// pageFor is the page that the server chooses: the largest, up to 64 KiB, of which a token's KV takes
// a whole number.
func pageFor(shape *compute.Shape) int {
	token := shape.ChunkBytes(1, false)
	return min(max(token&-token, 256), 64<<10)
}
