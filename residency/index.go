package residency

import (
	"fmt"
	"math"

	"grebe/plan"
)

// Index is a copy of the books of several nodes, which routers use. It is fed by the nodes' feeds.
//
// A node's part is unknown until a snapshot was taken, and again after a gap in its feed or a new boot. The index says
// nothing about what a node with an unknown part holds. So it never says more than some earlier state of the node's
// books.
//
// Memory is bounded and taken at once: 32 bytes per copy of a user, and 16 + 32·⌈nodes/64⌉ bytes per other entry,
// 48 with up to 64 nodes. The latter have more empty slots, because a request looks up one user and a hundred items. An
// entry that finds no room is left out and counted.
//
// Keys are compared by 64 bits (Hash): of ten million keys, two are taken for one with a probability of 3·10⁻⁶. A
// user's copy has a digest of its tokens besides.
//
// It is not safe for concurrent use. Nothing allocates after NewIndex.
type Index struct {
	nodes   []part
	known   []uint64 // set of nodes
	stride  int      // words of a set of nodes
	users   table    // an entry per user and node: hash, digest, copy
	others  table    // an entry per key: hash, two bits of the tier per node
	skip    func(node int, hash uint64) bool
	refused int64
	read    uint64 // see warm
}

// part is the state of one node's feed.
type part struct {
	boot, seq uint64 // of the last event
	known     bool
	whole     bool // the index has everything up to that event, whether it is known or not
	loading   bool // a snapshot has begun and is not complete
	held      int  // entries in the index
}

// IndexConfig has the sizes of an Index.
type IndexConfig struct {
	Nodes int
	Users int // most copies of users, over all nodes
	Items int // most other entries; one that several nodes hold counts once
	// Skip says that an entry other than a user's is not indexed for a node, because the caller knows it by other
	// means. nil: all are indexed.
	Skip func(node int, hash uint64) bool
}

const maxIndexNodes = 1 << 12

// NewIndex returns an index that knows no node.
func NewIndex(c IndexConfig) (*Index, error) {
	if c.Nodes < 1 || c.Nodes > maxIndexNodes {
		return nil, fmt.Errorf("residency: index of %d nodes, want 1 to %d", c.Nodes, maxIndexNodes)
	}
	if c.Users < 0 || c.Items < 0 {
		return nil, fmt.Errorf("residency: index of %d users and %d items", c.Users, c.Items)
	}
	words := (c.Nodes + 63) / 64
	return &Index{
		nodes: make([]part, c.Nodes), known: make([]uint64, words), stride: words,
		users: newTable(c.Users, c.Users/3*4, 3), others: newTable(c.Items, 2*c.Items, 1+2*words), skip: c.Skip,
	}, nil
}

// Known reports whether a node's part is known. If it is not, the follower takes a snapshot.
func (x *Index) Known(node int) bool { return x.nodes[node].known }

// Held returns how many entries of a node there are, whether its part is known or not.
func (x *Index) Held(node int) int { return x.nodes[node].held }

// Entries returns how many copies of users and how many other entries there are, and how many events found no room.
func (x *Index) Entries() (users, others int, refused int64) {
	return x.users.count, x.others.count, x.refused
}

// Bytes returns the size of the tables.
func (x *Index) Bytes() int { return 8 * (len(x.users.words) + len(x.others.words)) }

// Apply takes events of a node's feed in the order of their numbers, and skips those that it has. It reports whether
// the node's part is known afterwards. With a new boot or a gap it is not. A part that was lost takes events and stays
// unknown.
func (x *Index) Apply(node int, boot uint64, events []Event) (known bool) {
	f := &x.nodes[node]
	if !f.whole {
		return false
	}
	if boot != f.boot {
		x.Lose(node)
		return false
	}
	x.warm(events)
	for i := range events {
		e := &events[i]
		switch {
		case e.Seq <= f.seq:
			continue
		case e.Seq > f.seq+1:
			x.Lose(node)
			return false
		}
		f.seq = e.Seq
		x.put(node, e)
	}
	return f.known
}

// warm reads where the searches for events' keys begin. The reads do not depend on each other, so they wait for memory
// together.
func (x *Index) warm(events []Event) {
	read, t := uint64(0), &x.others
	for i := range events {
		if e := &events[i]; e.Kind != plan.User {
			read ^= t.words[t.home(mix(Hash(e.Key)))*t.stride]
		}
	}
	x.read = read // so that the reads are not left out
}

// Heard takes the boot and the number of a node's last event. Events up to that number MUST have been applied. If they
// have not arrived, or the boot is new, the node's part is unknown.
func (x *Index) Heard(node int, boot, seq uint64) (known bool) {
	f := &x.nodes[node]
	if f.known && (boot != f.boot || seq > f.seq) {
		x.Lose(node)
	}
	return f.known
}

// Snapshot takes a piece of a node's snapshot: entries in the order in which Core.Snapshot reported them. seq is the
// number of the feed before the snapshot. The node's part is known after the last piece. The first piece, or one of
// another snapshot, removes what was known before.
func (x *Index) Snapshot(node int, boot, seq uint64, piece []Event, last bool) {
	f := &x.nodes[node]
	if !f.loading || boot != f.boot || seq != f.seq {
		x.Lose(node)
		x.remove(node)
		*f = part{boot: boot, seq: seq, loading: true}
	}
	for i := range piece {
		x.put(node, &piece[i])
	}
	if last {
		f.whole, f.loading = true, false
		x.Resume(node, boot, seq)
	}
}

// Resume makes a node's part known again after Lose, without a snapshot. It returns false if the index does not have
// everything up to event seq, and nothing later.
func (x *Index) Resume(node int, boot, seq uint64) bool {
	f := &x.nodes[node]
	if !f.whole || boot != f.boot || seq != f.seq {
		return false
	}
	f.known = true
	x.known[node/64] |= 1 << (node % 64)
	return true
}

// Lose makes a node's part unknown. What it has is kept, for Resume.
func (x *Index) Lose(node int) {
	f := &x.nodes[node]
	f.known, f.loading = false, false
	x.known[node/64] &^= 1 << (node % 64)
}

// put takes one event.
func (x *Index) put(node int, e *Event) {
	hash := mix(Hash(e.Key))
	held := e.Tier != plan.Missing && e.Tier != plan.Peer
	switch {
	case !held: // the event does not say of which kind the entry was
		x.putUser(node, hash, 0, nil)
		x.putOther(node, hash, plan.Missing)
	case e.Kind == plan.User:
		x.putUser(node, hash, e.Digest, &e.Entry)
	case x.skip != nil && x.skip(node, Hash(e.Key)):
		x.putOther(node, hash, plan.Missing)
	default:
		x.putOther(node, hash, e.Tier)
	}
}

// A user's third word has tokens, node and tier.
func packed(tokens int32, node int, tier plan.Tier) uint64 {
	return uint64(uint32(tokens))<<32 | uint64(node)<<8 | uint64(tier)
}

func packedNode(w uint64) int { return int(w >> 8 & 0xffffff) }

// putUser sets a node's copy of a user, or removes it if e is nil.
func (x *Index) putUser(node int, hash, digest uint64, e *Entry) {
	t := &x.users
	i := t.home(hash)
	for ; t.hash(i) != 0; i = t.next(i) {
		if t.hash(i) == hash && packedNode(t.slot(i)[2]) == node {
			break
		}
	}
	there := t.hash(i) != 0
	switch {
	case e == nil && there:
		t.remove(i)
		x.nodes[node].held--
		return
	case e == nil:
		return
	case !there:
		if i = t.add(hash); i < 0 {
			x.refused++
			return
		}
		x.nodes[node].held++
	}
	s := t.slot(i)
	s[1], s[2] = digest, packed(e.Tokens, node, e.Tier)
}

// putOther sets the tier in which a node has an entry that is not a user's.
func (x *Index) putOther(node int, hash uint64, tier plan.Tier) {
	t := &x.others
	i := t.find(hash)
	if i < 0 {
		if tier == plan.Missing {
			return
		}
		if i = t.add(hash); i < 0 {
			x.refused++
			return
		}
	}
	if x.set(i, node, tier); tier == plan.Missing && empty(t.slot(i)[1:]) {
		t.remove(i)
	}
}

// set sets the two bits of a node: Missing is 0, Device 1, Host 2 and Disk 3.
func (x *Index) set(i, node int, tier plan.Tier) {
	switch was := x.tier(i, node); {
	case was == plan.Missing && tier != plan.Missing:
		x.nodes[node].held++
	case was != plan.Missing && tier == plan.Missing:
		x.nodes[node].held--
	}
	s, bit := x.others.slot(i)[1:], uint(node%64)
	low, high := &s[node/64], &s[x.stride+node/64]
	*low = *low&^(1<<bit) | uint64(tier&1)<<bit
	*high = *high&^(1<<bit) | uint64(tier>>1&1)<<bit
}

func empty(set []uint64) bool {
	for _, w := range set {
		if w != 0 {
			return false
		}
	}
	return true
}

// remove removes everything of a node.
func (x *Index) remove(node int) { x.removeRange(node, Range{0, math.MaxUint64}) }

// Copy is a node's copy of a user's KV.
type Copy struct {
	Node   int
	Tier   plan.Tier
	Tokens int32 // of the user's tokens, from the first on

	digest uint64
}

// Users appends to dst the nodes that hold KV of a user, as far as their parts are known. A copy counts only if its
// digest is that of the user's first tokens: an older copy is a shorter prefix, and one of other tokens is left out. If
// tokens is nil, digests are not compared: the caller knows that histories only grow. n is the number of the user's
// tokens.
func (x *Index) Users(dst []Copy, user uint64, tokens []int32, n int32) []Copy {
	first, hash, t := len(dst), mix(user), &x.users
	for i := t.home(hash); t.hash(i) != 0; i = t.next(i) {
		if t.hash(i) != hash {
			continue
		}
		s := t.slot(i)
		if node := packedNode(s[2]); x.nodes[node].known {
			dst = append(dst, Copy{Node: node, Tier: plan.Tier(s[2] & 0xff), Tokens: int32(s[2] >> 32), digest: s[1]})
		}
	}
	found := dst[first:]
	// The order of slots depends on what was removed before. Sort, so that it does not matter.
	for i := 1; i < len(found); i++ {
		for j := i; j > 0 && found[j].before(&found[j-1]); j-- {
			found[j], found[j-1] = found[j-1], found[j]
		}
	}
	if tokens == nil {
		for i := range found {
			found[i].Tokens = min(found[i].Tokens, n)
		}
		return dst
	}
	return dst[:first+prefixes(found, tokens)]
}

func (c *Copy) before(d *Copy) bool {
	return c.Tokens < d.Tokens || c.Tokens == d.Tokens && c.Node < d.Node
}

// prefixes moves the copies that begin like tokens to the front, and returns their number. They are sorted by length.
func prefixes(copies []Copy, tokens []int32) int {
	h, kept, done := digestStart, 0, 0
	for _, c := range copies {
		if int(c.Tokens) > len(tokens) {
			break
		}
		h = h.add(tokens[done:c.Tokens])
		done = int(c.Tokens)
		if c.digest == 0 || c.digest == h.sum() {
			copies[kept] = c
			kept++
		}
	}
	return kept
}

// lineWords is the number of words in a line of the processor's cache.
const lineWords = 8

// Others sets sets to who holds entries that are not users', as far as nodes' parts are known. It takes
// 2·⌈nodes/64⌉ words per key. Bit n%64 of word n/64·len(keys)+k is the low bit of the tier in which node n has
// keys[k]. The high bits follow in the second half.
func (x *Index) Others(keys, sets []uint64) {
	t, words, n := &x.others, x.stride, len(keys)
	// First only read where the searches begin, and the next line of the processor's cache. These reads do not depend on
	// each other, so they wait for memory together.
	for k, key := range keys {
		at := t.home(mix(key)) * t.stride
		sets[k] = t.words[at] ^ t.words[min(at+lineWords, len(t.words)-1)]
	}
	for k, key := range keys {
		i := t.find(mix(key))
		if i < 0 {
			for j := range 2 * words {
				sets[j*n+k] = 0
			}
			continue
		}
		s := t.slot(i)[1:]
		for j, known := range x.known {
			sets[j*n+k], sets[(words+j)*n+k] = s[j]&known, s[words+j]&known
		}
	}
}
