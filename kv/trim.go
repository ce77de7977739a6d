package kv

// Trim evicts entries until the store's share of its pools is within their boundaries, after one has moved. It returns
// false when the rest is in use; that memory is freed when its last reader releases it.
func (s *Store) Trim() bool {
	for _, l := range s.levels {
		for l.pool.Over() > 0 {
			if !s.evictOne(l) {
				return false
			}
		}
	}
	return true
}
