package kv

// Trim evicts until the store owns no more of its pool than it may, after the boundary of the pool moved. False when what
// is left over is in use: it is freed with its last reader.
func (s *Store) Trim() bool {
	for s.top.pool.Over() > 0 {
		if !s.evictOne(s.top) {
			return false
		}
	}
	return true
}
