package evict

import "math"

// laru is LARU, learning-augmented LRU (LRU-1 in docs/explain/papers.md; Algorithm 1 of its paper).
//
// Requests are divided into phases of k distinct entries, where k entries fill the cache. Each phase starts with
// confidence λ = 1. A miss on an entry that a prediction evicted earlier in the phase proves that prediction wrong
// (Lemma 1): the miss makes room by LRU and halves λ. Any other miss evicts, among the ⌈λ·k⌉ least recently used
// entries, the one predicted to return last.
//
// In bytes: a phase is a run of distinct entries of together at most the capacity, B bytes. The candidates are the
// least recently used entries that begin within λ·B bytes. With entries of one size this is the algorithm of the
// paper. With different sizes:
//
//   - Lemma 1 holds. While room is needed, the cached entries and the missed one together exceed B, so not all of them
//     can be requested again within the phase. The evicted entry was therefore not the farthest.
//   - Perfect predictions are always followed (λ stays 1): the farthest return is evicted first. That is the optimum
//     only for equal sizes.
//   - LRU evictions never take an entry of the current phase. So a phase of d distinct entries has at most d misses
//     that follow predictions. They evict less than B + d·S bytes, S being the largest entry. Every other miss brings
//     back one of those evictions. So fewer than 2·B + d·S bytes are missed. For equal sizes no eviction takes more
//     than needed, and there are at most 2·d misses.
//
// Entries that must stay (pinned, not a leaf) weaken the bounds by as much as they occupy.
type laru struct {
	Predicted
	capacity   int64
	lambda     float64
	phase      uint32
	requested  int64    // distinct bytes requested in the phase
	seen       []uint32 // per slot: phase of its last request
	keys       []uint64 // per slot
	byForecast table    // keys evicted by predictions in this phase
	evicted    table    // all other keys requested in this phase that are not cached
	safe       bool     // the current miss proved a prediction wrong
}

func newLARU(c Config) *laru {
	return &laru{
		Predicted: NewPredicted(c), capacity: c.Bytes, lambda: 1, phase: 1,
		seen: make([]uint32, c.Slots), keys: make([]uint64, c.Slots),
		byForecast: newTable(c.Slots), evicted: newTable(c.Slots),
	}
}

func (p *laru) Hit(s Slot, a Access) {
	if p.seen[s] != p.phase {
		p.count(a.Bytes)
		p.seen[s] = p.phase
	}
	p.Predicted.Hit(s, a)
}

// count adds a distinct entry to the phase, or starts the next phase with it.
func (p *laru) count(bytes int64) {
	if p.requested+bytes > p.capacity {
		p.phase++
		p.requested, p.lambda = 0, 1
		p.byForecast.clear()
		p.evicted.clear()
	}
	p.requested += bytes
}

const (
	beforePhase = iota // evicted without a request in this phase
	inPhase            // requested in this phase, then evicted
)

func (p *laru) Miss(a Access) {
	p.Predicted.Miss(a)
	when, wrong := p.byForecast.get(a.Key)
	_, dropped := p.evicted.get(a.Key)
	if !(wrong && when == inPhase || dropped) {
		phase := p.phase
		p.count(a.Bytes)
		wrong = wrong && phase == p.phase
	}
	p.safe = wrong
	if wrong {
		p.lambda /= 2
		p.byForecast.remove(a.Key)
	}
	// Until Insert, the entry counts as requested and not cached.
	p.evicted.put(a.Key, inPhase)
}

func (p *laru) Insert(s Slot, a Access) {
	p.evicted.remove(a.Key)
	p.keys[s], p.seen[s] = a.Key, p.phase
	p.Predicted.Insert(s, a)
}

func (p *laru) Victim(evictable func(Slot) bool) (Slot, bool) {
	if p.safe {
		return p.forget(p.takeOldest(evictable))
	}
	end := p.within(int64(math.Ceil(p.lambda * float64(p.capacity))))
	s, ok := p.TakeFarthest(end, evictable)
	if !ok { // no candidate may be evicted
		return p.forget(p.takeOldest(evictable))
	}
	when := int32(beforePhase)
	if p.seen[s] == p.phase {
		when = inPhase
	}
	p.byForecast.put(p.keys[s], when)
	return s, true
}

// forget remembers an entry that LRU evicts, if it was requested in this phase.
func (p *laru) forget(s Slot, ok bool) (Slot, bool) {
	if ok && p.seen[s] == p.phase {
		p.evicted.put(p.keys[s], inPhase)
	}
	return s, ok
}

// Resize does not end the phase. A phase that has more distinct bytes than the new capacity ends with the next entry.
func (p *laru) Resize(bytes int64) { p.capacity = bytes }

func (p *laru) Remove(s Slot) {
	p.forget(s, true)
	p.Predicted.Remove(s)
}
