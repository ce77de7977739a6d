package hstu

import "grebe/embed"

// CountShards has the look-ups of the model's item table counted by shard. It is called after SetCache.
func (m *Model) CountShards() {
	if t := m.counted(); t != nil {
		t.CountShards(m.cfg.Items)
	}
}

// Shards returns the look-ups of the model's item table by shard; nil: they are not counted.
func (m *Model) Shards() *embed.Shards {
	if t := m.counted(); t != nil {
		return t.Shards()
	}
	return nil
}

// counted returns the item table whose look-ups tell what a node has cached, or nil. Behind a cache in the device's
// memory a table sees only what that cache misses: the nodes with the rows would seem to lack them.
func (m *Model) counted() *embed.Table {
	if s, ok := m.content.item.source.(*tableRows); ok && m.content.item.cache == nil {
		return s.table
	}
	return nil
}

// ItemAt returns the row of the item of event i of a history, −1 for a contextual row. content describes its rows where
// the model has content features (Describe).
func (v *Vocabulary) ItemAt(tokens, content []int32, i int) int32 {
	if v.Featured() {
		return v.Item(content[i*v.Width()])
	}
	return v.Item(tokens[i])
}

// Missing counts the look-ups of rows that the model's tables do not have.
func (m *Model) Missing() (n int64) {
	for _, t := range m.tables() {
		if s, ok := t.source.(*tableRows); ok {
			n += s.table.Stats().Missing
		}
	}
	return n
}
