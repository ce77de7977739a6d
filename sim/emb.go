package sim

// embeddings is a node's cache of embedding rows, for models of events.
type embeddings struct{}

func (e *embeddings) fetch(rows int, p *Profile) float64 {
	return 1e3 * float64(int64(rows)*p.RowBytes) / p.RowLink
}

// alpha returns the share of memory that embeddings have.
func (n *node) alpha() float64 { return 0 }

// shards appends the embedding shards that the node holds.
func (n *node) shards(dst []uint32) []uint32 { return dst }

// epoch moves the boundary between embeddings and KV.
func (n *node) epoch() {}
