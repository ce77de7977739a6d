package guard

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// shared makes the limits of keys hold over all members of a cluster. Every member has the whole bucket of a key. It
// takes from it what its own clients spend, and what other members say that theirs have spent. What others spent since
// their last report is not known, so for a moment the sum can exceed the limit; the bucket is then in debt, and all
// members refuse until that is paid back.
//
// A member that cannot be reached may spend too. Its fair share of the limit is left to it: with 2 of 3 members in
// reach, a bucket fills at two thirds of its rate. So the sides of a partition together hold the limit, and none is
// ever without one.
type shared struct {
	mu    sync.Mutex
	peers map[string]*peer // the other members
	share fraction         // of the limits, that the members in reach have
	wake  chan struct{}    // has a value after a request was counted
	next  uint64           // number of the last report of this process
}

// peer is another member as this process has heard it.
type peer struct {
	boot   string            // of the process that sent the last report; empty: none was heard since it was out of reach
	number uint64            // of that report
	spent  map[uint64]uint64 // that the report has
	missed bool              // out of reach
}

// fraction is a number that is 1 until it is set.
type fraction struct{ bits atomic.Uint64 }

func (f *fraction) set(v float64) { f.bits.Store(math.Float64bits(v)) }

func (f *fraction) get() float64 {
	if bits := f.bits.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return 1
}

// debtSeconds bounds a bucket's debt, so that no report can refuse a key's requests for longer.
const debtSeconds = 60

// Wake receives a value after requests of limited keys were counted. Other members should get a report soon.
func (g *Guard) Wake() <-chan struct{} { return g.shared.wake }

// Spent returns a report for the other members: how many requests of each limited key were let through since the
// process started. Keys are named by part of a digest. A later report has a higher number.
func (g *Guard) Spent() (number uint64, spent map[uint64]uint64) {
	s := &g.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	spent = map[uint64]uint64{}
	for _, k := range g.list() {
		if k.bucket != nil {
			spent[k.id()] = k.bucket.count()
		}
	}
	return s.next, spent
}

// id names a key to other members. It does not reveal the stored digest.
func (e *entry) id() uint64 {
	d := sha256.Sum256(append([]byte("grebe limit "), e.digest[:]...))
	return binary.LittleEndian.Uint64(d[:])
}

// SetPeers takes the ids of all other members.
func (g *Guard) SetPeers(ids []string) {
	s := &g.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peers == nil {
		s.peers = map[string]*peer{}
	}
	for _, id := range ids {
		if s.peers[id] == nil {
			s.peers[id] = &peer{}
		}
	}
	for id := range s.peers {
		if !slices.Contains(ids, id) {
			delete(s.peers, id)
		}
	}
	s.settle()
}

// Heard takes a report of another member's process with this boot id. The first report of a process, and the first
// after it was out of reach, only say where to count from: until then it had its own share. A report that a later one
// has overtaken is ignored.
func (g *Guard) Heard(id, boot string, number uint64, spent map[uint64]uint64) {
	s := &g.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[id]
	if p == nil {
		return // not a member, as far as is known here
	}
	if p.boot == boot && number <= p.number {
		return
	}
	if p.boot == boot && !p.missed {
		for _, k := range g.list() {
			if k.bucket == nil {
				continue
			}
			if now, before := spent[k.id()], p.spent[k.id()]; now > before {
				k.bucket.charge(float64(now - before))
			}
		}
	}
	p.boot, p.number, p.spent, p.missed = boot, number, spent, false
	s.settle()
}

// Missed says that a member did not answer.
func (g *Guard) Missed(id string) {
	s := &g.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[id]; p != nil {
		p.missed = true
	}
	s.settle()
}

// settle computes the share. The caller holds the lock.
func (s *shared) settle() {
	reached := 1
	for _, p := range s.peers {
		if !p.missed {
			reached++
		}
	}
	s.share.set(float64(reached) / float64(1+len(s.peers)))
}

// LimitShare returns the share of the limits that the members in reach have, 0 to 1.
func (g *Guard) LimitShare() float64 { return g.shared.share.get() }

// KeysDigest returns a digest of all keys with names, roles and limits, by which members compare theirs; empty: there
// are none.
func (g *Guard) KeysDigest() string {
	list := slices.Clone(g.list())
	if len(list) == 0 {
		return ""
	}
	slices.SortFunc(list, func(a, b entry) int { return slices.Compare(a.digest[:], b.digest[:]) })
	h := sha256.New()
	for _, k := range list {
		roles := slices.Clone(k.roles)
		slices.Sort(roles)
		fmt.Fprintf(h, "%x %q %q", k.digest, k.name, roles)
		if k.bucket != nil {
			fmt.Fprintf(h, " %x %x", math.Float64bits(k.bucket.rate), math.Float64bits(k.bucket.burst))
		}
		h.Write([]byte{'\n'})
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
