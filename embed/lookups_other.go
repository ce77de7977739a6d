//go:build noasm || race || !amd64

package embed

import "grebe/evict"

func (l *lookups) run(c *Cache, out []byte, from, to int) { l.runPlain(c, out, from, to) }

func (l *lookups) marks(evict.Slab, int, int, uint64) bool { return false }
