package serve

import (
	grebev1 "grebe/api/grebe/v1"
	"grebe/embed"
)

// shards returns the embedding shards of most of the rows that a request reads, the hottest first; nil if the rows are
// in no table.
func (e *events) shards(s *Service, w *work, candidates []*grebev1.Item) []uint32 {
	counts := e.model.Shards()
	if counts == nil {
		return nil
	}
	keys := func(yield func(key uint64) bool) {
		for i := range w.user {
			if row := e.model.ItemAt(w.user, w.content, i); row >= 0 && !yield(uint64(row)) {
				return
			}
		}
		for _, c := range candidates {
			if row, ok := s.row(e.model, c.GetId(), c.Identifier); ok && !yield(uint64(row)) {
				return
			}
		}
	}
	return counts.Hottest(make([]uint32, 0, embed.Profile), keys)
}
