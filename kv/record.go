package kv

import (
	"grebe/evict"
	"grebe/internal/record"
	"grebe/kv/radix"
)

// Record has the store write what it is told and what it decides. It MUST be called after all that prepares the store, and before it is used.
func (s *Store) Record(r *record.Room) {
	if !r.On() {
		return
	}
	s.rec = r
	r.In("open", s.policy, s.below != nil, s.trainer != nil)
	for _, l := range s.levels {
		l.rec = r
		r.In("level", l.place, len(l.bySlot), l.room, s.top.place == Host || l.place == Device)
	}
}

func (p Place) String() string { return [...]string{"nowhere", "device", "host"}[p] }

// name is the entry's key as logs take it.
func (p *published) name() [32]byte { return p.key }

// kindName is the kind as logs spell it.
func (p *published) kindName() string {
	if p.kind == Prefix {
		return "prefix"
	}
	return p.kind.String()
}

// victim asks the policy of a level who leaves it. A log has the answers that the policy got on the way.
func (s *Store) victim(l *level) (evict.Slot, bool) {
	if !s.rec.On() {
		return l.policy.Victim(l.evictable)
	}
	s.rec.In("need", l.place)
	return l.policy.Victim(func(slot evict.Slot) bool {
		ok := l.evictable(slot)
		s.rec.In("pin", l.bySlot[slot].name(), ok)
		return ok
	})
}

// recordInsert writes what a sequence changes among the known prefixes.
func (s *Store) recordInsert(done radix.Change[*published], tokens int) {
	name := func(n *node) any {
		if n == nil {
			return "-"
		}
		return [32]byte(prefixKey(n.Hash()))
	}
	s.rec.In("insert", tokens, done.Start, name(done.Added), name(done.Upper), name(done.Lower), name(done.Covered))
}
