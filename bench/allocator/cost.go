package allocator

import (
	"embed"
	"encoding/json"
	"fmt"
)

// Cost is what work takes on an H200. Source says where the numbers come from.
type Cost struct {
	Source   string  `json:"source"`
	Base     float64 `json:"gpu_base_us"`
	Row      float64 `json:"gpu_row_us"`    // per row computed
	Cached   float64 `json:"gpu_cached_us"` // per cached row
	Pair     float64 `json:"gpu_pair_us"`   // per row computed and key that it sees
	Link     float64 `json:"link_bytes_per_second"`
	RowBytes int64   `json:"row_bytes"`
	KVBytes  int64   `json:"kv_event_bytes"`
	Pool     int64   `json:"pool_bytes"`
	GPUs     int     `json:"-"` // that share the pool, each with a link
}

//go:embed derived.json measured.json
var costFiles embed.FS

// Costs returns those by name: "derived" from figures of other kernels, on which the policy and the predictors were
// trained, or "measured" with HSTU's own.
func Costs(name string) (*Cost, error) {
	b, err := costFiles.ReadFile(name + ".json")
	if err != nil {
		return nil, fmt.Errorf("allocator: no costs %q: want derived or measured", name)
	}
	var c Cost
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("allocator: read costs: %w", err)
	}
	return &c, nil
}

// compute returns the milliseconds for rows new rows behind cached ones.
func (c *Cost) compute(rows, cached int) float64 {
	n, m := float64(rows), float64(cached)
	return (c.Base + c.Row*n + c.Cached*m + c.Pair*n*(m+n/2)) / 1e3
}

// of returns the costs of a node of so many GPUs.
func (c *Cost) of(gpus int) *Cost {
	n := *c
	n.GPUs, n.Pool = gpus, c.Pool*int64(gpus)
	return &n
}
