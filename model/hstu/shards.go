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
