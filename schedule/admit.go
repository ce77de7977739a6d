package schedule

import "time"

// Node is what a request that comes finds at a node. The node decides by it whether the request is let in. A router that
// knows it predicts the same.
type Node struct {
	Ends     []time.Duration // by engine: when its batch is predicted to end; in the past: it is free
	Ahead    time.Duration   // of the waiting requests that run before it, with the margin: see Batcher.Ahead
	Margin   float64         // that Ahead has, as a share of what is predicted
	Promised float64         // milliseconds of work of admitted requests that does not wait or run yet
	Idle     bool            // nothing runs or waits, and nobody was admitted
	Factor   float64         // by which predictions are multiplied, as they were exceeded so far
	Answer   time.Duration   // from the end of a batch until the client has its answer
}

// InTime predicts how long it takes until work of so many milliseconds is done, without a factor, and by how much its answer
// misses a deadline. Late is not above 0 if the request is to be let in. An idle node lets everything in, since its
// predictions may be wrong and only a measurement corrects them.
func (n *Node) InTime(own float64, now, deadline time.Duration) (takes, late time.Duration) {
	ms := own + n.Promised
	for _, end := range n.Ends {
		ms += float64(max(0, end-now)) / float64(time.Millisecond)
	}
	all := float64(n.Ahead)/(1+n.Margin) + ms*float64(time.Millisecond)
	takes = time.Duration(all) / time.Duration(len(n.Ends))
	if n.Idle {
		return takes, 0
	}
	return takes, now + time.Duration(n.Factor*float64(takes)) + n.Answer - deadline
}

// Kind tells requests apart whose times are alike.
type Kind uint8

// Kinds of requests.
const (
	Single Kind = iota // one job
	Rounds             // jobs one after the other, as many as a search needs
	kinds
)

// Admission decides whether a request is let in, before anything is computed for it and again when its first job comes, and
// whether an idle engine tries a job that the Batcher shed. It learns from what batches and requests took.
//
// The owner calls Begin and Ended around each batch, and Admit, Enter and Leave for each request.
type Admission struct {
	queue    *Batcher
	ends     []time.Duration // by engine: when its batch is predicted to end
	busy     int             // engines that run a batch
	running  float64         // predicted milliseconds of batches under way, over all engines
	ran      time.Duration   // when the last batch began
	measured int             // batches, up to settled
	places   int             // requests that were admitted and have not left
	promised float64         // milliseconds that they are expected to take, besides what waits and runs
	usual    [kinds]usual
	errors   Quantile // of what batches took, as a multiple of what was predicted
	delays   Quantile // of when requests were answered, as a multiple of what was predicted when they came
	wakeups  Quantile // milliseconds from the end of a batch until a caller goes on
}

// Bounds of what predictions are given on top.
const (
	leastMargin, mostMargin = .05, 1 // of batches
	leastDelay, mostDelay   = .15, 3 // of requests, behind others
	// sending is for making an answer, and for the network between the client and the server.
	sending = 2 * time.Millisecond
)

const (
	// settled is how many batches have to be measured before predictions are trusted on an idle engine. A machine that is
	// slow when it starts is soon faster than predicted.
	settled = 16
	// probeAfter is how long an engine that sheds everything stays idle before it computes a request all the same. A
	// prediction can be wrong, and only a measurement corrects it.
	probeAfter = time.Second
	// roughly is the share of a request's usual time that is taken for granted before its job is known.
	roughly = .7
)

// NewAdmission is for so many engines that serve a queue.
func NewAdmission(queue *Batcher, engines int) *Admission {
	return &Admission{
		queue: queue, ends: make([]time.Duration, engines),
		errors: NewQuantile(1+leastMargin, .95), wakeups: NewQuantile(.5, .95), delays: NewQuantile(1+leastDelay, .98),
	}
}

// Node returns what a request with a deadline finds. It refers to the Admission's memory until the next call.
func (a *Admission) Node(deadline time.Duration) Node {
	return Node{
		Ends: a.ends, Ahead: a.queue.Ahead(deadline), Margin: a.queue.Margin(), Promised: a.promised,
		Idle:   a.busy == 0 && a.queue.Len() == 0 && a.places == 0,
		Factor: min(max(a.delays.Value(), 1+leastDelay), 1+mostDelay), Answer: a.queue.Answer(),
	}
}

// Price is what was predicted for a request.
type Price struct {
	Own   float64       // milliseconds of its own work
	Takes time.Duration // until that is done, behind what is under way
	Late  time.Duration // by how much it misses its deadline; 0 or less: it does not
}

func (a *Admission) price(own float64, now, deadline time.Duration) Price {
	n := a.Node(deadline)
	takes, late := n.InTime(own, now, deadline)
	return Price{own, takes, late}
}

// Place is a request between its admission and its answer. Its work counts among what is ahead of others, also while it has
// no job in the queue: before the first, and between two.
type Place struct {
	kind  Kind
	size  float64
	left  float64 // milliseconds that its jobs are still expected to take
	spent float64 // that its jobs were predicted to take
	jobs  int
	// expected is how long after entered, when its first job came, the request was predicted to be answered, without a factor.
	entered, expected time.Duration
	answered          bool // a job of it was computed, and none failed
}

// Admit decides on a request of a size, such as its number of candidates, before its jobs are known. Unless it is late, it
// has a place until Leave.
func (a *Admission) Admit(kind Kind, size int, now, deadline time.Duration) (Place, Price) {
	p := Place{kind: kind, size: float64(max(1, size))}
	p.left = p.size * a.usual[kind].each
	own := p.left
	if kind == Single {
		own *= roughly
	}
	price := a.price(own, now, deadline)
	if price.Late <= 0 {
		a.promised += p.left
		a.places++
	}
	return p, price
}

// Enter takes in a job of a place that takes so many milliseconds by itself: it is expected no longer. It decides on the
// first; decided is false for others, which belong to work that has begun.
func (a *Admission) Enter(p *Place, own float64, now, deadline time.Duration) (price Price, decided bool) {
	if decided = p.jobs == 0; decided {
		takes := own
		if p.kind == Rounds {
			takes = max(own, p.left)
		}
		a.promised -= p.left
		a.places--
		price = a.price(takes, now, deadline)
		p.entered, p.expected = now, price.Takes
		a.promised += p.left
		a.places++
		if price.Late > 0 {
			return price, true
		}
	}
	rest := 0.0
	if p.kind == Rounds {
		rest = max(0, p.left-own)
	}
	a.promised += rest - p.left
	p.left = rest
	p.jobs++
	p.spent += own
	return price, decided
}

// Done notes whether a job of the place was computed.
func (p *Place) Done(computed bool) { p.answered = computed && (p.answered || p.jobs == 1) }

// Leave gives a place back. It returns how long the request took as a multiple of what was predicted, which is learned; 0:
// nothing is.
func (a *Admission) Leave(p *Place, now time.Duration) (delay float64) {
	a.promised -= p.left
	p.left = 0
	if a.places--; a.places == 0 {
		a.promised = 0 // and no rounding errors
	}
	if p.jobs > 0 {
		a.usual[p.kind].observe(p.spent / p.size)
	}
	if p.answered && p.expected > 0 {
		delay = float64(now-p.entered) / float64(p.expected)
		a.delays.Observe(delay)
	}
	return delay
}

// Tries reports whether an engine that would be idle computes a job that was shed and takes so many milliseconds by itself:
// where it may still end in time if nothing goes wrong, where too little was measured to be sure, and every now and then.
func (a *Admission) Tries(alone float64, now, deadline time.Duration) bool {
	if a.busy > 0 || deadline <= now {
		return false
	}
	takes := time.Duration(alone * float64(time.Millisecond))
	return a.measured < settled || now-a.ran > probeAfter || now+takes <= deadline
}

// Begin notes that an engine begins a batch that is predicted to take so many milliseconds.
func (a *Admission) Begin(engine int, predicted float64, now time.Duration) {
	a.busy++
	a.running += predicted
	a.ran = now
	a.ends[engine] = now + time.Duration(predicted*float64(time.Millisecond))
}

// Ended notes that the batch ended, of which Begin was told the same.
func (a *Admission) Ended(engine int, predicted float64) {
	a.running -= predicted
	if a.busy--; a.busy == 0 {
		a.running = 0 // and no rounding errors
	}
	a.ends[engine] = 0
}

// Running returns the predicted milliseconds of the batches under way, over all engines.
func (a *Admission) Running() float64 { return a.running }

// Measured learns from a batch that took so many milliseconds.
func (a *Admission) Measured(took, predicted float64) {
	a.measured = min(a.measured+1, settled)
	a.errors.Observe(took / max(predicted, 1e-6))
}

// Woke learns how many milliseconds after the end of its batch a caller went on.
func (a *Admission) Woke(ms float64) { a.wakeups.Observe(ms) }

// Slack is what the Batcher should allow for: how far predictions were off, and how long goroutines wait for a core, once to
// read a request and once to write its answer.
func (a *Admission) Slack() (margin float64, answer time.Duration) {
	wake := time.Duration(a.wakeups.Value() * float64(time.Millisecond))
	return min(max(a.errors.Value()-1, leastMargin), mostMargin), 2*wake + sending
}

// usual is what requests of a kind take, in milliseconds per size.
type usual struct {
	each float64
	seen bool
}

func (u *usual) observe(each float64) {
	if !u.seen {
		u.each, u.seen = each, true
		return
	}
	u.each += (each - u.each) / 16
}
