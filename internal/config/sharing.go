package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Sharing is the part of a model's configuration that two models must have in common to share a checkpoint: weights,
// engines and memory.
type Sharing struct {
	path, dtype, kv, weights, keep, table string
	device, rows, host, disk              Size
}

// Sharing follows links in the path.
func (m *Model) Sharing() Sharing {
	at, err := filepath.EvalSymlinks(m.Path)
	if err != nil {
		at = m.Path // opening it returns the error
	}
	return Sharing{at, m.DType, m.KVDType, m.Weights, strings.Join(m.WeightsKeep, "\n"),
		fmt.Sprint(m.ItemTable, m.Tables), m.DeviceMemory,
		m.DeviceRows, m.HostMemory, m.Disk}
}
