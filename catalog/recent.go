package catalog

import (
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
	if d := (&decoded{it, e.version, decodedSize(it)}); d.bytes <= room/4 {
		s.swap(slot, d)
	}
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

// decodedSize estimates the memory of an item that was decoded.
func decodedSize(it *prompt.Item) int64 {
	n := 2*mapSize + len(it.ID) + len(it.Text) + 4*(len(it.Tokens)+len(it.Codes)) +
		attributeSize*max(0, len(it.Attributes)-8)
	for name, values := range it.Attributes {
		n += len(name)
		for _, v := range values {
			n += stringSize + len(v)
		}
	}
	return int64(n)
}

const (
	attributeSize = 100 // of another name and its list in a map, at most
	stringSize    = 16
)
