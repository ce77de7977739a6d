package sim

import (
	"encoding/binary"

	"grebe/plan"
	"grebe/residency"
	"grebe/schedule"
)

// body is the simulator's part of an entry of KV.
type body struct {
	item int32 // ordinal of an item; -1: a user's, or a preamble
	pins int32 // calls that use it
	gone bool  // off the books; it is used again when the last call releases it
}

type held = residency.Held[body]

// chain is the number of tokens of a chunk of a user's KV, as kv.ChainTokens.
const chain = 64

// memory is what a level holds. Used counts reserved memory too.
type memory struct{ used, total int64 }

// store keeps KV as package kv does: the books of package residency decide, and the store counts the bytes. Copies between
// levels of memory end at once.
type store struct {
	books   *residency.Core[body]
	mem     []memory
	tiers   []plan.Tier
	token   int64 // bytes of a token's KV
	full    bool  // see schedule.HasRoom
	spare   []*held
	dropped func(h *held) // told of entries that leave memory

	may, inPlace func(*held) bool
	lowered      int64 // bytes copied from the device to the host
	raised       int64 // bytes copied back
}

// maxSlots bounds the entries of a level, as in package kv.
const maxSlots = 1 << 19

// storeConfig says how large a store is.
type storeConfig struct {
	device, host int64 // bytes; a level of 0 bytes does not exist
	slots        int   // most entries of a level; 0: as many as fit, at most maxSlots
	policy       string
	predict      bool
	token        int64
}

func newStore(c storeConfig) (*store, error) {
	s := &store{token: c.token, dropped: func(*held) {}}
	rc := residency.Config{Policy: c.policy, Predict: c.predict, Chunk: chain}
	for _, l := range []residency.LevelConfig{{Tier: plan.Device, Bytes: c.device}, {Tier: plan.Host, Bytes: c.host}} {
		if l.Bytes <= 0 {
			continue
		}
		l.Slots = int(min(max(l.Bytes/c.token, 1), maxSlots))
		if c.slots > 0 {
			l.Slots = min(l.Slots, c.slots)
		}
		rc.Levels = append(rc.Levels, l)
		s.mem = append(s.mem, memory{total: l.Bytes})
		s.tiers = append(s.tiers, l.Tier)
	}
	var err error
	s.books, err = residency.New[body](rc)
	s.may = func(h *held) bool { return h.Value.pins == 0 }
	s.inPlace = func(*held) bool { return true }
	return s, err
}

// chained returns the bytes of a user's KV, which is kept in whole chunks.
func (s *store) chained(tokens int) int64 { return int64((tokens+chain-1)/chain) * chain * s.token }

// room makes room for bytes on a level. It returns false if too much is in use.
func (s *store) room(level int, bytes int64) bool {
	m := &s.mem[level]
	for m.total-m.used < bytes {
		if !s.evict(level) {
			return false
		}
	}
	return true
}

// reserve takes bytes of the top level. They belong to the caller until publish or release.
func (s *store) reserve(bytes int64) bool {
	if !s.room(0, bytes) {
		return false
	}
	s.mem[0].used += bytes
	return true
}

func (s *store) release(bytes int64) { s.mem[0].used -= bytes }

// evict makes one entry leave a level. It returns false if all are in use.
func (s *store) evict(level int) bool {
	h, exit := s.books.Need(level, s.may)
	switch {
	case h == nil:
		return false
	case exit == residency.Lower:
		s.lower(h)
	default:
		s.mem[level].used -= h.Bytes
		s.drop(h)
	}
	return true
}

// lower copies an entry from the device's memory to the host's.
func (s *store) lower(h *held) {
	landed := s.books.Moved(h, 1, s.room(1, h.Bytes))
	s.mem[0].used -= h.Bytes
	if landed == residency.There {
		s.mem[1].used += h.Bytes
		s.lowered += h.Bytes
		return
	}
	s.drop(h)
}

// drop reports an entry that left memory.
func (s *store) drop(h *held) {
	if top := &s.mem[0]; schedule.Crowded(top.used, top.total) {
		s.full = true
	}
	s.dropped(h)
	s.free(h)
}

// use returns an entry and the tier where it was, and counts the use; nil if memory does not have it.
func (s *store) use(key plan.Key) (*held, plan.Tier) {
	h, where := s.books.Use(key, s.inPlace)
	switch where {
	case residency.Nowhere:
		return nil, plan.Missing
	case residency.Here:
		return h, s.tiers[h.Level()]
	}
	switch s.books.Moved(h, 0, s.room(0, h.Bytes)) { // to the top
	case residency.There:
		s.mem[0].used += h.Bytes
		s.mem[1].used -= h.Bytes
		s.raised += h.Bytes
	case residency.Out:
		s.mem[1].used -= h.Bytes
		s.drop(h)
		return nil, plan.Missing
	}
	return h, plan.Host
}

// publish puts computed or fetched KV on the books of the top level, in memory of which some is reserved.
func (s *store) publish(h *held, reserved int64) {
	top := &s.mem[0]
	for s.books.Full(0) && s.books.Get(h.Key) == nil {
		if !s.evict(0) {
			top.used -= reserved
			s.free(h)
			return
		}
	}
	from := -1
	if was := s.books.Get(h.Key); was != nil {
		from = was.Level()
	}
	top.used -= reserved
	did, old, _ := s.books.Publish(h, 0, false)
	if old != nil {
		s.mem[from].used -= old.Bytes
		s.free(old)
	}
	if did != residency.Placed {
		s.free(h)
		return
	}
	top.used += h.Bytes
	h.Value.pins++ // it stays while others make room for it
	if !s.room(0, 0) {
		s.books.Delete(h.Key)
		top.used -= h.Bytes
		h.Value.gone = true
	}
	s.unpin(h)
}

// entry returns a new entry that is not on the books.
func (s *store) entry(key plan.Key, k plan.Kind, tokens int, bytes int64, item int32) *held {
	h := &held{}
	if n := len(s.spare); n > 0 {
		h, s.spare = s.spare[n-1], s.spare[:n-1]
	}
	*h = held{Key: key, Kind: k, Tokens: tokens, Bytes: bytes, Named: k == plan.User, Value: body{item: item}}
	return h
}

// free ends an entry that is off the books.
func (s *store) free(h *held) {
	h.Value.gone = true
	if h.Value.pins == 0 {
		s.spare = append(s.spare, h)
	}
}

func (s *store) pin(h *held) { h.Value.pins++ }

func (s *store) unpin(h *held) {
	if h.Value.pins--; h.Value.pins == 0 && h.Value.gone {
		s.spare = append(s.spare, h)
	}
}

// userKey, itemKey and sharedKey are the keys of entries. Their first bytes are a hash, as those of a server's keys are.
func userKey(user uint64) plan.Key  { return keyOf(user, 1) }
func itemKey(item int32) plan.Key   { return keyOf(uint64(uint32(item)), 2) }
func sharedKey(number int) plan.Key { return keyOf(uint64(number), 3) }
func keyOf(id, of uint64) (k plan.Key) {
	binary.LittleEndian.PutUint64(k[:], scramble(id*4+of))
	binary.LittleEndian.PutUint64(k[8:], id)
	k[16] = byte(of)
	return k
}

// scramble is splitmix64. It maps different numbers to different ones.
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// unscramble is the inverse of scramble.
func unscramble(x uint64) uint64 {
	x = (x ^ x>>31 ^ x>>62) * 0x319642b2d24d8ec3
	x = (x ^ x>>27 ^ x>>54) * 0x96de1b173f119089
	x = x ^ x>>30 ^ x>>60
	return x - 0x9e3779b97f4a7c15
}
