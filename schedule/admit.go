package schedule

import "time"

// Node is the state of a node when a request arrives. The node uses it to decide whether to admit the request. A router
// that knows it predicts the same.
type Node struct {
	Ends     []time.Duration // by engine: when its batch is predicted to end; in the past: the engine is free
	Ahead    time.Duration   // predicted time of the waiting requests that run first, with the margin: see Batcher.Ahead
	Margin   float64         // margin included in Ahead, as a share of the prediction
	Promised float64         // milliseconds of work of admitted requests that is not yet queued or running
	Idle     bool            // nothing runs or waits, and no request is admitted
	Factor   float64         // by which predictions are multiplied, because earlier ones were exceeded
	Answer   time.Duration   // from the end of a batch until the client has its answer
}

// InTime predicts how long it takes until own milliseconds of work are done, without Factor, and by how much the answer
// misses a deadline. The request is admitted if late is at most 0. An idle node admits everything, because its
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

// Kind groups requests that take a similar time.
type Kind uint8

// Kinds of requests.
const (
	Single Kind = iota // one job
	Rounds             // one job after the other, as many as a search needs
	kinds
)

// Admission decides whether to admit a request: before anything is computed for it, and again when its first job
// arrives. It also decides whether an idle engine tries a job that the Batcher shed. It learns from the times of
// batches and requests.
//
// The owner calls Begin and Ended around each batch, and Admit, Enter and Leave for each request.
type Admission struct {
	queue    *Batcher
	ends     []time.Duration // by engine: when its batch is predicted to end
	busy     int             // engines that run a batch
	running  float64         // predicted milliseconds of the running batches, over all engines
	ran      time.Duration   // when the last batch began
	measured int             // measured batches, up to settled
	places   int             // requests that are admitted and have not left
	promised float64         // milliseconds of their expected work that is not queued or running
	usual    [kinds]usual
	errors   Quantile // measured time of batches, as a multiple of the prediction
	delays   Quantile // time until requests were answered, as a multiple of the prediction at their arrival
	wakeups  Quantile // milliseconds from the end of a batch until a caller continues
	crowd    int      // others that use the device too
}

// Limits of what is added to predictions.
const (
	leastMargin, mostMargin = .05, 1 // of batches
	leastDelay, mostDelay   = .15, 3 // of requests that wait for others
	// sending is the time to encode an answer and for the network between client and server.
	sending = 2 * time.Millisecond
)

const (
	// settled is the number of batches to measure before predictions are trusted on an idle engine. A machine that
	// starts slowly is soon faster than predicted.
	settled = 16
	// probeAfter is how long an engine that sheds everything stays idle before it computes a request anyway. A
	// prediction can be wrong, and only a measurement corrects it.
	probeAfter = time.Second
	// roughly is the share of a request's usual time that is assumed before its job is known.
	roughly = .7
)

// NewAdmission makes an Admission for a queue that is served by a number of engines.
func NewAdmission(queue *Batcher, engines int) *Admission {
	return &Admission{
		queue: queue, ends: make([]time.Duration, engines),
		errors: NewQuantile(1+leastMargin, .95), wakeups: NewQuantile(.5, .95), delays: NewQuantile(1+leastDelay, .98),
	}
}

// Learn takes over what another Admission learned from the times of batches and requests.
func (a *Admission) Learn(from *Admission) {
	a.measured, a.usual = from.measured, from.usual
	a.errors, a.delays, a.wakeups = from.errors, from.delays, from.wakeups
}

// Node returns the state that a request with a deadline finds. It refers to the Admission's memory until the next call.
func (a *Admission) Node(deadline time.Duration) Node {
	return Node{
		Ends: a.ends, Ahead: a.queue.Ahead(deadline), Margin: a.queue.Margin(), Promised: a.promised,
		Idle:   a.busy == 0 && a.queue.Len() == 0 && a.places == 0,
		Factor: min(max(a.delays.Value(), 1+leastDelay, a.doubled()), 1+mostDelay), Answer: a.queue.Answer(),
	}
}

// Price is the prediction for a request.
type Price struct {
	Own   float64       // milliseconds of its own work
	Takes time.Duration // until that is done, including the work ahead of it
	Late  time.Duration // by how much it misses its deadline; 0 or less: it meets it
}

func (a *Admission) price(own float64, now, deadline time.Duration) Price {
	n := a.Node(deadline)
	takes, late := n.InTime(own, now, deadline)
	return Price{own, takes, late}
}

// Place is an admitted request that is not answered yet. Its work counts as ahead of other requests even while it has
// no job in the queue: before its first job, and between two.
type Place struct {
	kind  Kind
	size  float64
	left  float64 // milliseconds expected for its further jobs
	spent float64 // milliseconds predicted for its jobs so far
	jobs  int
	// entered is when the first job arrived, expected how long after that the request was predicted to be answered,
	// without a factor.
	entered, expected time.Duration
	answered          bool // a job was computed, and none failed
}

// Admit decides about a request of a size, such as its number of candidates, before its jobs are known. Unless it is
// late, it has a place until Leave.
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

// Enter adds a job of a place. own is its predicted time alone, in milliseconds. The job no longer counts as expected.
// Enter decides about the first job. For later ones, whose request has begun, decided is false.
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

// Done records whether a job of the place was computed.
func (p *Place) Done(computed bool) { p.answered = computed && (p.answered || p.jobs == 1) }

// Leave ends a place. It returns the time of the request as a multiple of the prediction, and learns from it. 0 means
// that there is nothing to learn.
func (a *Admission) Leave(p *Place, now time.Duration) (delay float64) {
	a.promised -= p.left
	p.left = 0
	if a.places--; a.places == 0 {
		a.promised = 0 // drop rounding errors
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

// Tries reports whether an idle engine computes a shed job. alone is its predicted time, in milliseconds. The engine
// tries it if the job may still be in time when nothing goes wrong, if too few batches were measured, and every now and
// then.
func (a *Admission) Tries(alone float64, now, deadline time.Duration) bool {
	if a.busy > 0 || deadline <= now {
		return false
	}
	takes := time.Duration(alone * float64(time.Millisecond))
	return a.measured < settled || now-a.ran > probeAfter || now+takes <= deadline
}

// Begin records that an engine begins a batch. predicted is in milliseconds.
func (a *Admission) Begin(engine int, predicted float64, now time.Duration) {
	a.busy++
	a.running += predicted
	a.ran = now
	a.ends[engine] = now + time.Duration(predicted*float64(time.Millisecond))
}

// Ended records the end of a batch. predicted MUST be the same as in Begin.
func (a *Admission) Ended(engine int, predicted float64) {
	a.running -= predicted
	if a.busy--; a.busy == 0 {
		a.running = 0 // drop rounding errors
	}
	a.ends[engine] = 0
}

// Ends returns when an engine's batch is predicted to end.
func (a *Admission) Ends(engine int) time.Duration { return a.ends[engine] }

// Running returns the predicted milliseconds of the running batches, over all engines.
func (a *Admission) Running() float64 { return a.running }

// Measured learns from a batch. Both times are in milliseconds.
func (a *Admission) Measured(took, predicted float64) {
	a.measured = min(a.measured+1, settled)
	a.errors.Observe(took / max(predicted, 1e-6))
}

// Woke learns how many milliseconds after the end of its batch a caller continued.
func (a *Admission) Woke(ms float64) { a.wakeups.Observe(ms) }

// Slack returns what the Batcher should allow for: the error of predictions, and the time that goroutines wait for a
// core, once to read a request and once to write its answer.
func (a *Admission) Slack() (margin float64, answer time.Duration) {
	wake := time.Duration(a.wakeups.Value() * float64(time.Millisecond))
	return min(max(a.errors.Value(), 1+leastMargin, a.doubled())-1, mostMargin), 2*wake + sending
}

// Crowd adds n others that use the device too, such as a checkpoint that is checked before it serves. While there are
// any, batches may take twice as long as predicted. A request is better refused than admitted and late.
func (a *Admission) Crowd(n int) { a.crowd += n }

// doubled returns the least factor of predictions.
func (a *Admission) doubled() float64 {
	if a.crowd > 0 {
		return 2
	}
	return 1
}

// usual is the usual time of a kind's requests, in milliseconds per unit of size.
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
