package sim

import (
	"encoding/binary"
	"slices"

	"grebe/evict"
	"grebe/plan"
	"grebe/pool"
	"grebe/residency"
	"grebe/schedule"
)

// body is the simulator's part of an entry of KV.
type body struct {
	item   int32    // ordinal of an item; -1: a user's, or a preamble
	refs   int32    // of the books, and of calls that use it; without any its memory is free
	chunks []int32  // in store.chunks; entries of a user may share them
	few    [8]int32 // where chunks are, while they are few
}

type held = residency.Held[body]

// chain is the number of tokens of a chunk of a user's KV, as kv.ChainTokens.
const chain = 64

// memory is what a level holds. Used counts memory of entries that are not on the books too.
type memory struct {
	used, total int64
	pages       *pool.Pages // where entries lie, nil: memory is never fragmented
	page        int64       // bytes
}

// take takes bytes and returns where they lie. It returns false if there is no room.
func (m *memory) take(bytes int64) (first int32, ok bool) {
	if m.used+bytes > m.total {
		return 0, false
	}
	if m.pages != nil {
		at, ok := m.pages.Take(int(bytes / m.page))
		if !ok {
			return 0, false
		}
		first = int32(at)
	}
	m.used += bytes
	return first, true
}

func (m *memory) put(first int32, bytes int64) {
	m.used -= bytes
	if m.pages != nil {
		m.pages.Put(int(first), int(bytes/m.page))
	}
}

// chunk is memory that entries share.
type chunk struct {
	tokens, first, refs, level int32
}

// store keeps KV as package kv does: the books of package residency decide, and the store counts the bytes. Copies
// between levels of memory end at once.
type store struct {
	books   *residency.Core[body]
	mem     []memory
	tiers   []plan.Tier
	token   int64 // bytes of a token's KV
	full    bool  // see schedule.HasRoom
	chunks  []chunk
	unused  []int32 // chunks to use again
	copied  []int32 // chunks of entries that are being moved; a move may cause another one
	spare   []*held
	dropped func(h *held) // told of entries that leave memory
	pace    pacer         // nil: the store waits for nobody

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
	page         int64 // bytes of a page, which divide token; 0: memory is never fragmented
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
		m := memory{total: l.Bytes}
		if c.page > 0 {
			m.page, m.pages = c.page, pool.NewPages(int(l.Bytes/c.page))
		}
		s.mem = append(s.mem, m)
		s.tiers = append(s.tiers, l.Tier)
	}
	var err error
	s.books, err = residency.New[body](rc)
	s.may = func(h *held) bool { return h.Value.refs == 1 }
	s.inPlace = func(*held) bool { return true }
	return s, err
}

// pacer has a store do things in the order in which those of a recorded server were done.
type pacer interface {
	// before a call looks for an entry; false: the server did not find it
	look(plan.Key) bool
	take()                                             // before memory is taken
	took(level int, first int32, bytes int64, ok bool) // and after that
	// before an eviction because memory lacks room; again: look for room first
	lacks() (again bool)
	put(*chunk) (now bool) // before memory is freed, which is done now or later
}

// take takes memory for a chunk.
func (s *store) take(level int, bytes int64) (first int32, ok bool) {
	m := &s.mem[level]
	if s.pace == nil {
		return m.take(bytes)
	}
	s.pace.take()
	first, ok = m.take(bytes)
	s.pace.took(level, first, bytes, ok)
	return first, ok
}

// newChunk takes memory of a level for some tokens. It evicts entries until they fit, and returns false if all are in
// use.
func (s *store) newChunk(level int, tokens int32) (int32, bool) {
	for {
		if first, ok := s.take(level, int64(tokens)*s.token); ok {
			c := chunk{tokens: tokens, first: first, refs: 1, level: int32(level)}
			if n := len(s.unused); n > 0 {
				i := s.unused[n-1]
				s.unused, s.chunks[i] = s.unused[:n-1], c
				return i, true
			}
			s.chunks = append(s.chunks, c)
			return int32(len(s.chunks) - 1), true
		}
		if s.pace != nil && s.pace.lacks() {
			continue
		}
		if !s.evict(level) {
			return 0, false
		}
	}
}

// fit evicts entries until a level is not larger than it may be, or all are in use.
func (s *store) fit(level int) {
	for m := &s.mem[level]; m.used > m.total && s.evict(level); {
	}
}

// release drops a reference to each chunk. The last one frees it.
func (s *store) release(chunks []int32) {
	for _, i := range chunks {
		c := &s.chunks[i]
		if c.refs--; c.refs == 0 {
			if s.pace == nil || s.pace.put(c) {
				s.mem[c.level].put(c.first, int64(c.tokens)*s.token)
			}
			s.unused = append(s.unused, i)
		}
	}
}

// reserve returns a new entry of the top level that is not on the books, with a reference of the caller's. It shares
// the full chunks of the first known tokens of a user's older entry, which may be nil. It returns nil if there is no
// room.
func (s *store) reserve(key plan.Key, k plan.Kind, tokens int, item int32, older *held, known int) *held {
	h := s.entry(key, k, tokens, item)
	have := 0
	if older != nil {
		have = s.share(h, older, known)
	}
	for have < tokens {
		n := tokens - have
		if k == plan.User {
			n = chain
		}
		c, ok := s.newChunk(0, int32(n))
		if !ok {
			s.unpin(h)
			return nil
		}
		s.add(h, c)
		have += n
	}
	return h
}

// share has an entry share the chunks of another one that are full with its first tokens. It returns their tokens.
func (s *store) share(h, older *held, tokens int) (have int) {
	for _, i := range older.Value.chunks {
		c := &s.chunks[i]
		if c.level != 0 || c.tokens != chain || have+chain > tokens {
			break
		}
		c.refs++
		s.add(h, i)
		have += chain
	}
	return have
}

func (s *store) add(h *held, c int32) {
	h.Value.chunks = append(h.Value.chunks, c)
	h.Bytes += int64(s.chunks[c].tokens) * s.token
}

// leading returns an entry of the first tokens of another one, with a reference of the caller's.
func (s *store) leading(of *held, tokens int) *held {
	h := s.entry(of.Key, of.Kind, tokens, of.Value.item)
	for _, i := range of.Value.chunks {
		if tokens <= 0 {
			break
		}
		s.chunks[i].refs++
		s.add(h, i)
		tokens -= int(s.chunks[i].tokens)
	}
	return h
}

// evict makes one entry leave a level. It returns false if all are in use.
func (s *store) evict(level int) bool {
	h, exit := s.books.Need(level, s.may)
	switch {
	case h == nil:
		return false
	case exit == residency.Lower:
		if s.move(h, 1) == residency.There {
			s.lowered += h.Bytes
		}
	default:
		s.drop(h)
	}
	return true
}

// move copies an entry to a level.
func (s *store) move(h *held, level int) residency.Landing {
	h.Value.refs++ // it stays while others make room for it
	first := len(s.copied)
	ok := true
	for _, c := range h.Value.chunks {
		var n int32
		if n, ok = s.newChunk(level, s.chunks[c].tokens); !ok {
			break
		}
		s.copied = append(s.copied, n)
	}
	h.Value.refs--
	landed := s.books.Moved(h, level, ok)
	unused := s.copied[first:]
	if landed == residency.There {
		for i, c := range h.Value.chunks {
			h.Value.chunks[i], unused[i] = unused[i], c
		}
	}
	s.release(unused)
	s.copied = s.copied[:first]
	if landed == residency.Out {
		s.drop(h)
	}
	return landed
}

// drop ends the books' use of an entry that left memory.
func (s *store) drop(h *held) {
	if top := &s.mem[0]; schedule.Crowded(top.used, top.total) {
		s.full = true
	}
	s.dropped(h)
	s.unpin(h)
}

// look is called before a call looks for an entry. It returns false if the call must not find it.
func (s *store) look(key plan.Key) bool { return s.pace == nil || s.pace.look(key) }

// use returns an entry and the tier where it was, and counts the use; nil if memory does not have it.
func (s *store) use(key plan.Key) (*held, plan.Tier) {
	h, where := s.books.Use(key, s.inPlace)
	switch where {
	case residency.Nowhere:
		return nil, plan.Missing
	case residency.Here:
		return h, s.tiers[h.Level()]
	}
	switch s.move(h, 0) { // to the top
	case residency.There:
		s.raised += h.Bytes
	case residency.Out:
		return nil, plan.Missing
	}
	return h, plan.Host
}

// publish puts computed or fetched KV on the books of the top level. The caller keeps its reference.
func (s *store) publish(h *held) {
	for s.books.Full(0) && s.books.Get(h.Key) == nil {
		if !s.evict(0) {
			return
		}
	}
	did, old, _ := s.books.Publish(h, 0, false)
	if did == residency.Placed {
		h.Value.refs++
	}
	if old != nil {
		s.unpin(old)
	}
}

// bring puts an item that was computed elsewhere on the books, if there is room.
func (s *store) bring(key plan.Key, tokens int, item int32) {
	if h := s.reserve(key, plan.Item, tokens, item, nil, 0); h != nil {
		s.publish(h)
		s.unpin(h)
	}
}

// entry returns a new entry without memory, with a reference of the caller's.
func (s *store) entry(key plan.Key, k plan.Kind, tokens int, item int32) *held {
	var h *held
	if n := len(s.spare); n > 0 {
		h, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		h = &held{}
		h.Value.chunks = h.Value.few[:0]
	}
	*h = held{Key: key, Kind: k, Tokens: tokens, Named: k == plan.User,
		Value: body{item: item, refs: 1, chunks: h.Value.chunks[:0]}}
	return h
}

func (s *store) pin(h *held) { h.Value.refs++ }

// unpin drops a reference. Without any the entry is used again.
func (s *store) unpin(h *held) {
	if h.Value.refs--; h.Value.refs == 0 {
		s.release(h.Value.chunks)
		h.Value.chunks = h.Value.chunks[:0]
		s.spare = append(s.spare, h)
	}
}

// keys are the keys of entries: those of a recorded server, or made from numbers if there are none.
type keys struct {
	users, items []plan.Key
	fixed        [2]plan.Key // of the preamble and the lead-in
}

func (k *keys) user(user uint64) plan.Key {
	if k.users != nil {
		return k.users[user]
	}
	return userKey(user)
}

func (k *keys) item(item int32) plan.Key {
	if k.users != nil {
		return k.items[item]
	}
	return itemKey(item)
}

func (k *keys) shared(number int) plan.Key {
	if k.users != nil {
		return k.fixed[number]
	}
	return sharedKey(number)
}

// of reports whether a key is of a segment of a call.
func (k *keys) of(c *call, key plan.Key) bool {
	return k.user(c.User) == key || k.shared(0) == key || k.shared(1) == key ||
		slices.ContainsFunc(c.Items, func(item int32) bool { return k.item(item) == key })
}

// train trains a model when a lesson is complete. It takes no time of the node, whose server trains in the background.
func (s *store) train() {
	if l, level := s.books.Lesson(); l != nil {
		s.books.Trained(level, l.Train(evict.TrainParams{}))
	}
}

// userKey, itemKey and sharedKey are the keys of entries. Their first bytes are a hash, as those of a server's keys
// are.
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
