package kv

// Trim evicts until the store owns no more of its pools than it may, after the boundary of one moved. False when what
// is left over is in use: it is freed with its last reader.
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
