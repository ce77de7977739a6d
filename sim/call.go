package sim

import (
	"time"

	"grebe/plan"
	"grebe/schedule"
)

// Request is a ranking that reaches the fleet.
type Request struct {
	At         time.Duration
	User       uint64
	UserTokens int32
	Items      []int32 // ordinals in the catalog, distinct
	ItemTokens []int32 // length of each

	// Of models of events: the embedding shards of most grains that it reads, the hottest first, and how many grains its
	// user and its candidates have.
	Shards             []uint32
	UserRows, ItemRows int
}

// outcome says how a request ended.
type outcome uint8

const (
	answered outcome = iota
	refused          // admission predicted that it would be late
	shed             // it waited too long in the queue
	lost             // no node could answer it
)

// Ended says how one request ended.
type Ended struct {
	At, Took         time.Duration // its arrival, and the time from then until the answer was there
	Queue, Compute   time.Duration // of Took: in the node's queue, and in its batch
	Answered         bool
	Tokens, Computed int // of its prompt: all, and those that were computed for it
	Node             int // that answered
	Order            plan.Order
}

// call is a request on its way. Calls are used again.
type call struct {
	Request
	gen      uint32 // raised whenever the call is used again
	live     bool
	router   int32
	node     int32
	here     bool // it is on the node
	tried    int8 // nodes that failed it
	counted  bool // it arrived after the warm-up
	deadline time.Duration
	begun    time.Duration // when it reached the node
	chosen   float64       // milliseconds that the router predicted
	foreseen int           // tokens that the router predicted not to be computed
	outcome  outcome
	backlog  float64 // milliseconds of work that the node had left when it answered

	// On the node.
	place    schedule.Place
	admitted bool
	reuse    bool // the policy uses the cache
	order    plan.Order
	hit      bool
	freq     float64
	returns  float64
	queue    schedule.Job
	pinned   []pin
	tiers    []plan.Tier // of each item, as found
	keep     bool        // the user is kept after it was computed
	cached   int         // tokens of the user that are cached
	userAt   plan.Tier   // and where
	shared   [2]bool     // preamble and lead-in are cached
	blended  bool        // an ordinary prompt with KV from anywhere
	older    *held       // that the cached tokens of the user are in
	awaited  *pending    // KV of the user that another call may compute first
	items    []*pending  // KV of each item likewise, with items first; nil: it is not awaited
	made     []pin       // entries that it computes, in the order of its prompt
	expected []*pending
	full     bool  // its batch had no room to continue what is cached
	whole    bool  // so all of it is computed, and not kept
	hostRead int64 // bytes read from host memory
	work     Work  // of its batch, when it was queued
	spared   Work  // of that, what it need not do
	rowsMiss int   // embedding rows that are not cached
	waits    int   // flows under way
	waiting  bool
	patience time.Duration // for nodes that are asked for KV; 0: none is
	far      int32         // tokens of the user that another node has
	farAt    int32         // the node
	userCame bool          // it sent them
	got      []bool        // by item: another node sent it
	begins   time.Duration // of its wait for flows
	ran      time.Duration // when its batch began
	ended    time.Duration // and ended
	tokens   [plan.NumTiers]int
	total    int
}

// again makes a call ready for another node. What it had on the first one is gone.
func (c *call) again() {
	*c = call{
		Request: c.Request, gen: c.gen, live: true, router: c.router, tried: c.tried, counted: c.counted,
		deadline: c.deadline,
		pinned:   c.pinned[:0], made: c.made[:0], expected: c.expected[:0], tiers: c.tiers[:0], items: c.items[:0],
	}
}

// pin is an entry that a call uses.
type pin struct {
	h       *held
	s       *store
	awaited *pending // by the call that computes it, if that is known
}

// calls are the requests on their way, by number.
type calls struct {
	all  []*call
	free []int32
}

func (c *calls) get() int32 {
	if n := len(c.free); n > 0 {
		i := c.free[n-1]
		c.free = c.free[:n-1]
		c.all[i].live = true
		return i
	}
	c.all = append(c.all, &call{live: true})
	return int32(len(c.all) - 1)
}

func (c *calls) put(i int32) {
	old := c.all[i]
	*old = call{
		gen: old.gen + 1, pinned: old.pinned[:0], made: old.made[:0], expected: old.expected[:0], tiers: old.tiers[:0],
		items: old.items[:0],
		got:   old.got[:0], Request: Request{Items: old.Items[:0], ItemTokens: old.ItemTokens[:0], Shards: old.Shards[:0]},
	}
	c.free = append(c.free, i)
}
