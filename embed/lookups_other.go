//go:build noasm || race || !amd64

package embed

func (l *lookups) run(c *Cache, out []byte, from, to int) { l.runPlain(c, out, from, to) }
