package hstu

import "grebe/embed"

// CountShards has the look-ups of the model's item table counted by shard.
func (m *Model) CountShards() {
	if s, ok := m.source.(*tableRows); ok {
		s.table.CountShards(m.cfg.Items)
	}
}

// Shards returns the look-ups of the model's item table by shard; nil: they are not counted.
func (m *Model) Shards() *embed.Shards {
	if s, ok := m.source.(*tableRows); ok {
		return s.table.Shards()
	}
	return nil
}

// ItemOf returns the row of the item of an event or a candidate. It returns false for a contextual row.
func (v *Vocabulary) ItemOf(token int32) (row int32, ok bool) {
	a := int32(v.cfg.actions())
	return token / a, token < int32(v.cfg.Items)*a
}

// Missing counts the look-ups of rows that the model's item table does not have.
func (m *Model) Missing() int64 {
	if s, ok := m.source.(*tableRows); ok {
		return s.table.Stats().Missing
	}
	return 0
}
