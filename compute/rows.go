package compute

// RowCacher is a Device that caches rows of tables that are too large for its memory.
type RowCacher interface {
	Device
	// RowCache returns a cache without pages for a table of so many rows of width values of F32 or BF16, which may get up
	// to most bytes of pages. A row has a multiple of 16 bytes. The caller MUST Close it, before the device.
	RowCache(rows, width int, dt DType, most int64) (RowCache, error)
}

// RowSource gives rows of a table.
type RowSource interface {
	// Format returns the format of the rows' values, F32 or BF16: that of a cache that they go to.
	Format() DType
	// Fetch writes the rows to to, one after the other, and says in known which of them may be cached: a row that stands
	// in for a missing one may not. It is safe for concurrent use.
	Fetch(rows []int32, to []byte, known []bool) error
}

// RowCache holds rows of one table in pages of a device's memory, for a SumPart. A batch looks its rows up where they
// are needed, on the device. The host decides which rows are cached; it fetches those that a batch lacks at once and
// waits for nothing if there are none. It is safe for concurrent use.
type RowCache interface {
	// PageBytes returns the size of a page.
	PageBytes() int
	// Grow adds pages, blocks of the device's memory that stay the caller's. It returns how many it took: it stops at the
	// most that it may have.
	Grow(pages []Block) (int, error)
	// Shrink returns up to n pages, which the device no longer uses. Their rows are forgotten.
	Shrink(n int) ([]Block, error)
	// Changed forgets rows whose content has changed; nil: all. Batches that begin to look up afterwards see the change.
	Changed(rows []int32)
	// Prefetch fetches rows that the cache lacks in the background, for a batch that begins later. It returns at once,
	// and does nothing where earlier calls are not done yet. rows is the cache's until then.
	Prefetch(rows []int32, from RowSource)
	Stats() RowStats
	// Close frees the cache's own memory. No runner may use it any more, or its pages.
	Close() error
}

// RowStats counts what a RowCache did since it was made. A row that a batch needs more than once counts once.
type RowStats struct {
	Rows         int // that fit
	Bytes        int64
	Hits, Misses int64
	Prefetched   int64 // rows
	Fetched      int64 // bytes that were fetched for misses and ahead of them
	Evictions    int64
	Declined     int64 // fetched rows that got no place
}
