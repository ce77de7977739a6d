package catalog

import (
	"encoding/binary"
	"sync/atomic"

	"grebe/prompt"
)

// recent keeps items that were decoded lately, within a number of bytes. It is safe for concurrent use.
type recent struct {
	slots [recentItems]atomic.Pointer[decoded] // by version
	bytes atomic.Int64                         // of all of them, estimated
	hand  atomic.Uint32                        // the slot that gives way next
}

const (
	recentItems = 1 << 14
	recentBytes = 64 << 20 // at most: what the records leave of Options.MaxMemory
)

// decoded is an item that was read lately.
type decoded struct {
	item    *prompt.Item
	version uint64
	bytes   int64
}

// item returns the item of an entry. It remembers it if that fits into room bytes.
func (s *recent) item(e itemEntry, id string, room int64) *prompt.Item {
	slot := &s.slots[e.version%recentItems]
	if d := slot.Load(); d != nil && d.version == e.version && d.item.ID == id {
		return d.item
	}
	it := e.item()
	room = min(room, recentBytes)
	d := &decoded{it, e.version, decodedSize(e.record)}
	if d.bytes > room/4 {
		return it
	}
	s.swap(slot, d)
	for range recentItems {
		if s.bytes.Load() <= room {
			break
		}
		s.swap(&s.slots[s.hand.Add(1)%recentItems], nil)
	}
	return it
}

func (s *recent) swap(slot *atomic.Pointer[decoded], d *decoded) {
	change := int64(0)
	if d != nil {
		change = d.bytes
	}
	if old := slot.Swap(d); old != nil {
		change -= old.bytes
	}
	s.bytes.Add(change)
}

// decodedSize estimates the memory of the item that a record decodes to.
func decodedSize(r record) int64 {
	n, k := binary.Uvarint(r) // of its strings; of its numbers each takes a byte or more
	return int64(n) + 4*int64(len(r)-k-int(n)) + 2*mapSize
}
