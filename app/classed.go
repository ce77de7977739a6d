package app

import (
	"grebe/internal/config"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/plan"
)

// classed is a disk whose records depend on the class of devices that computed them. Nodes of a cluster exchange KV
// only within a class. A folder that comes from a machine of another class, as a volume that follows its container,
// must not bring other bits.
type classed struct {
	*disk.Store
	class string // "": records of all classes are used, as a single process does
}

// versionOf returns the version of records, given that of their model.
func (c *classed) versionOf(model plan.Key) plan.Key {
	if c.class == "" {
		return model
	}
	return kv.KeyOf(model, nil, "numerics "+c.class)
}

// PutAs implements the interface of versions on disk that package kv looks for.
func (c *classed) PutAs(version [32]byte, key plan.Key, meta []byte, payload [][]byte) error {
	return c.Store.PutAs(c.versionOf(version), key, meta, payload)
}

// classOf returns the class of the device's KV if it matters, in a cluster.
func (a *App) classOf(cfg *config.Config) string {
	if cfg.Cluster.Name == "" {
		return ""
	}
	return a.numerics()
}
