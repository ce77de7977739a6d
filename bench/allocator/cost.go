package allocator

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

// Cost is what work takes on a device. h200.json says where its numbers come from.
type Cost struct {
	Source   string  `json:"source"`
	Base     float64 `json:"gpu_base_us"`
	Row      float64 `json:"gpu_row_us"`  // per row computed
	Pair     float64 `json:"gpu_pair_us"` // per row and key that it sees
	Link     float64 `json:"link_bytes_per_second"`
	RowBytes int64   `json:"row_bytes"`
	KVBytes  int64   `json:"kv_event_bytes"`
	Pool     int64   `json:"pool_bytes"`
}

//go:embed h200.json
var h200 []byte

// H200 returns the costs on an H200.
func H200() (*Cost, error) {
	var c Cost
	if err := json.Unmarshal(h200, &c); err != nil {
		return nil, fmt.Errorf("allocator: read costs: %w", err)
	}
	return &c, nil
}

// compute returns the milliseconds for rows new rows behind cached ones.
func (c *Cost) compute(rows, cached int) float64 {
	n, m := float64(rows), float64(cached)
	return (c.Base + c.Row*n + c.Pair*n*(m+n/2)) / 1e3
}
