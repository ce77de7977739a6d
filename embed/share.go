package embed

// RowsIn returns how many rows a cache on pages of a pool has room for in so many bytes: slabs are whole.
func RowsIn(bytes int64, page, rowBytes int) int {
	set := setSlots * rowBytes
	sets := max(1, page/set)
	slab := (sets*set + page - 1) / page * page
	return int(bytes/int64(slab)) * sets * setSlots
}

// MinRows returns how many rows a cache that may grow to so many must have: Config.Rows for Config.MaxRows.
func MinRows(most int) int { return (most + leastShare - 1) / leastShare }

// SetCache puts a cache before a table that has none. It MUST be called while nobody uses the table. The cache stays
// the caller's, who closes it after the last use of the table.
func (t *Table) SetCache(c *Cache) error {
	fresh, err := NewTable(t.store, c, TableConfig{Default: t.def, Timeout: t.timeout})
	if err != nil {
		return err
	}
	t.listeners.mu.Lock() // a store may report changes already
	t.cache = fresh.cache
	t.listeners.mu.Unlock()
	return nil
}
