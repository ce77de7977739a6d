package sim

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"grebe/evict"
	"grebe/internal/record"
	"grebe/plan"
	"grebe/residency"
	"grebe/schedule"
)

// Replayed says how the decisions of a node compare with those of a recorded server.
type Replayed struct {
	Requests    int            // that were ranked or refused
	Decisions   map[string]int // that were compared, by kind
	Different   int
	Differences []string // the first ones
}

// Compared returns the number of decisions that were compared.
func (r *Replayed) Compared() (n int) {
	for _, k := range r.Decisions {
		n += k
	}
	return n
}

// mostDifferences are listed.
const mostDifferences = 20

// Replay gives a node the outside events of a recorded server, in the order of the log: requests with their users,
// items and deadlines, the times at which things happened, and how long batches took. All else the node decides: prefix
// orders, what is reused, batches, refusals, where KV lies, and which KV is published and evicted. Replay compares that
// with what the server decided. Requests of a server overlap; the node takes their steps in the order of the log.
//
// The log MUST be of a server with one worker and no disk. Its first model is replayed. Requests are rankings of users
// with an id, whose histories only grow.
func Replay(in io.Reader) (*Replayed, error) { return replay(in, func(*node) {}) }

// replay replays a log with a node that change may change.
func replay(in io.Reader, change func(*node)) (*Replayed, error) {
	p := &player{
		report: &Replayed{Decisions: map[string]int{}}, numbers: map[int]int32{}, jobs: map[uint64]int32{},
		ids:    map[int32]uint64{},
		places: map[int]*schedule.Place{}, held: map[int]int32{}, wanted: map[time.Duration]sight{},
		visits: map[plan.Key]visit{},
		users:  map[plan.Key]uint64{}, items: map[plan.Key]int32{}, next: map[string][]string{},
	}
	for l, err := range record.Read(in) {
		if err != nil {
			return nil, err
		}
		if l.Log > 1 {
			return nil, errors.New("sim: replay a log of one server, not of several")
		}
		p.lines = append(p.lines, l)
	}
	if err := p.open(); err != nil {
		return nil, err
	}
	defer p.pace.stop()
	change(p.n)
	for i, l := range p.lines {
		p.at = i
		p.play(l)
		if err := l.Values.Failed(); err != nil {
			return nil, fmt.Errorf("sim: line %d: %w: %s", l.Number, err, l)
		}
		if p.err != nil {
			return nil, fmt.Errorf("sim: line %d: %w: %s", l.Number, p.err, l)
		}
	}
	p.close()
	for _, left := range p.changes {
		p.differ("at the end: the node decides %q, the server did nothing more", left)
	}
	if p.report.Compared() == 0 {
		return nil, errors.New("sim: the log has no decision that can be replayed")
	}
	return p.report, nil
}

// player drives a node by the lines of a log.
type player struct {
	report *Replayed
	lines  []*record.Line
	at     int // line that is played
	err    error
	f      *fleet
	n      *node

	users   map[plan.Key]uint64
	items   map[plan.Key]int32
	numbers map[int]int32    // calls by the number of their request
	jobs    map[uint64]int32 // calls by the server's number of their job
	ids     map[int32]uint64 // and back
	places  map[int]*schedule.Place
	held    map[int]int32 // calls by their place
	wanted  map[time.Duration]sight
	sights  []sight // that no request wants yet
	expects []estimate
	// backlogs are those of the node after each line of the queue.
	backlogs []float64
	gains    []estimate
	visits   map[plan.Key]visit
	drops    []drop

	changes []string            // of the books, that no line was compared with yet
	next    map[string][]string // other decisions that the next lines have, by room
	pace    pace
	admit   admit
	ending  []*call
	leaving []*call // that end or have been refused, and have not released all
	gone    []bool  // calls that ended
	ran     []bool
	closed  bool // the server closes its store
}

// visit is what a server looked up for a request before it decided.
type visit struct {
	items []plan.Key
	at    time.Duration
	sight
}

// sight is what the node saw when the server looked.
type sight struct {
	keys               []plan.Key
	tiers              []plan.Tier
	uses               []float32
	frequency, coldest float64
	since              int // in player.backlogs
}

// estimate is one of package schedule's Returns.
type estimate struct{ frequency, value float64 }

// drop is an eviction of a user's KV that a server learnt from.
type drop struct {
	user uint64
	at   time.Duration
}

// admit is a request that arrives.
type admit struct {
	on       bool
	id, size int
	kind     schedule.Kind
}

func (p *player) differ(format string, args ...any) {
	if p.report.Different++; len(p.report.Differences) < mostDifferences {
		p.report.Differences = append(p.report.Differences, fmt.Sprintf(format, args...))
	}
}

// compare compares a decision.
func (p *player) compare(kind, was, now string) {
	p.report.Decisions[kind]++
	if was != now {
		p.differ("line %d: %s: the server decided %q, the node decides %q", p.lines[p.at].Number, kind, was, now)
	}
}

// open makes the node from what the log says of the server.
func (p *player) open() error {
	s := Default()
	f := &fleet{scenario: s, result: newRecorder(s)}
	profile := &Profile{Name: "recorded"}
	f.keys = keys{users: []plan.Key{}, items: []plan.Key{}}
	var hot residency.HotnessConfig
	opened := map[string]bool{}
	for _, l := range p.lines {
		v := l.Values
		switch op := l.Room + " " + l.Op; op {
		case "kv0 open":
			s.Cache.Policy = v.Text()
			if v.Bool() {
				return errors.New("sim: the server has a disk, which nodes do not have")
			}
			s.Cache.Predict = v.Bool()
		case "kv0 level":
			at, _, bytes := v.Text(), v.Int(), v.Int64()
			if at == plan.Device.String() {
				profile.DeviceBytes = bytes
			} else {
				profile.HostBytes = bytes
			}
		case "kv0 hotness":
			hot = residency.HotnessConfig{Users: v.Int(), Items: v.Int(), Window: v.Time(), Buffer: v.Int()}
		case "kv0 page":
			f.page = v.Int64()
			opened[op] = true
		case "reuse0 prompt":
			f.keys.fixed[0], f.prompt.preamble = v.Key(), v.Int()
			f.keys.fixed[1], f.prompt.leadIn = v.Key(), v.Int()
			profile.KVTokenBytes = v.Int64()
			opened[op] = true
		case "dispatch0 open":
			s.Fleet.Workers, s.Queue, s.SLO.Duration, profile.MaxRows = v.Int(), v.Int(), v.Time(), v.Int()
		case "dispatch0 model":
			profile.Prefill = schedule.PrefillModel{Fixed: v.Float(), Row: v.Float(), Square: v.Float(), Key: v.Float(),
				Request: v.Float()}
			profile.Prefill.Quality.Largest = schedule.Sample{Rows: v.Int(), Keys: v.Int(), Requests: v.Int()}
			opened[op] = true
		case "memory0 take":
			opened[op] = true
		case "reuse0 evicted":
			p.drops = append(p.drops, drop{v.Uint64(), v.Time()})
		}
		if err := v.Failed(); err != nil {
			return fmt.Errorf("sim: line %d: %w: %s", l.Number, err, l)
		}
	}
	for _, op := range []string{"kv0 page", "reuse0 prompt", "dispatch0 model"} {
		if !opened[op] {
			return fmt.Errorf("sim: the log has no line %q: record it again with this version", op)
		}
	}
	if s.Fleet.Workers != 1 {
		return fmt.Errorf("sim: the server has %d workers: the order of their batches is not in the log", s.Fleet.Workers)
	}
	n := &node{f: f, profile: profile, slow: 1}
	p.f, p.n, f.nodes = f, n, []*node{n}
	if err := n.start(); err != nil {
		return err
	}
	var err error
	if n.hot, err = residency.NewHotness(hot); err != nil {
		return err
	}
	n.users.books.SetHotness(n.hot)
	n.users.books.SetTrace(p.changed)
	n.users.dropped = p.dropped
	n.users.may = p.pace.may
	p.pace = pace{p: p, paged: opened["memory0 take"], early: map[run]int{}, late: map[run]int{}, taken: map[run]bool{}}
	n.users.pace = &p.pace
	return nil
}

// name returns what the log calls a key.
func name(k plan.Key) string { return strings.TrimRight(string(k[8:]), "\x00") }

// changed notes a change of the books as a log has it.
func (p *player) changed(op residency.Op, h *held, at plan.Tier) {
	text := op.String() + " " + name(h.Key)
	switch op {
	case residency.DidPut:
		text += fmt.Sprintf(" %v %v %d %d", at, h.Kind, h.Tokens, h.Bytes)
	case residency.DidTake, residency.DidLeave, residency.DidHit:
		text += " " + at.String()
	}
	p.changes = append(p.changes, text)
}

// dropped has the node learn from an eviction, at the time at which the server did.
func (p *player) dropped(h *held) {
	if h.Kind != plan.User {
		return
	}
	user, was := residency.Hash(h.Key), drop{}
	if len(p.drops) > 0 {
		was, p.drops = p.drops[0], p.drops[1:]
	}
	p.compare("evicted user", fmt.Sprint(was.user), fmt.Sprint(user))
	p.n.returns.Evicted(user, was.at)
}

// play plays a line.
func (p *player) play(l *record.Line) {
	switch l.Room {
	case "dispatch0":
		if l.Did {
			p.dispatched(l)
			return
		}
		p.dispatch(l.Op, &l.Values)
		p.backlogs = append(p.backlogs, p.n.backlogMs())
	case "reuse0":
		p.reuse(l)
	case "kv0":
		p.kv(l)
	case "memory0":
		if !p.closed {
			p.pace.memory(l)
		}
	}
}

// then adds a decision that a next line of a room has. Rooms do not wait for each other: their lines may lie between.
func (p *player) then(room, op string, values ...any) {
	p.next[room] = append(p.next[room], record.Text(op, values...))
}

// follows compares a line with the next decision.
func (p *player) follows(kind string, l *record.Line) {
	was := strings.TrimPrefix(strings.TrimPrefix(l.String(), l.Room+" "), ". ")
	now := "nothing"
	if next := p.next[l.Room]; len(next) > 0 {
		now, p.next[l.Room] = next[0], next[1:]
	}
	p.compare(kind, was, now)
}

func (p *player) dispatched(l *record.Line) {
	switch l.Op {
	case "takes":
		p.follows("admission", l)
	case "queued", "full":
		p.follows("queue", l)
	case "run", "tries":
		p.follows("batch", l)
	case "learnt":
		p.follows("prefill model", l)
	}
}

// dispatch plays an event of the queue.
func (p *player) dispatch(op string, v *record.Values) {
	n := p.n
	switch op {
	case "admit":
		p.admit = admit{true, v.Int(), 0, schedule.Kind(v.Int())}
		p.admit.size = v.Int()
	case "price":
		p.price(v)
	case "add":
		p.add(v)
	case "step":
		p.step(v)
	case "free":
		p.pace.reserved()
		n.free(v.Int())
	case "ran":
		b := &n.engines[v.Int()]
		was := schedule.Sample{Requests: v.Int(), Rows: v.Int(), Keys: v.Int()}
		p.compare("computed", fmt.Sprint(was.Requests, was.Rows, was.Keys),
			fmt.Sprint(b.sample.Requests, b.sample.Rows, b.sample.Keys))
		if b.sample.Ms = v.Float(); v.Bool() {
			return
		}
		n.measured(b)
		margin, answer := n.admission.Slack()
		m := &n.model
		p.then("dispatch0", "learnt", m.Fixed, m.Row, m.Square, m.Key, m.Request, margin, answer)
	case "woke":
		n.admission.Woke(v.Float())
	case "remove":
		p.remove(v)
	case "leave":
		p.leave(v)
	case "slo":
		n.batcher.SetSLO(v.Time())
	case "await", "disk", "patience":
		p.err = errors.New("a wait for other engines or a disk is not replayed")
	}
}

// price is that of a request that arrives; that of a job is compared with the job.
func (p *player) price(v *record.Values) {
	v.Float()
	deadline, now := v.Time(), v.Time()
	if !p.admit.on {
		return
	}
	p.admit.on = false
	if p.admit.kind != schedule.Single {
		p.err = errors.New("a request that is no ranking is not replayed")
		return
	}
	place, price := p.n.admission.Admit(schedule.Single, p.admit.size, now, deadline)
	p.then("dispatch0", "takes", price.Takes, max(0, price.Late))
	if price.Late > 0 {
		p.report.Requests++
		return
	}
	p.places[p.admit.id] = &place
}

// add queues a job.
func (p *player) add(v *record.Values) {
	id, place, rows, keys, arrival, deadline, number := v.Uint64(), v.Int(), v.Int(), v.Int(), v.Time(), v.Time(), v.Int()
	i, known := p.numbers[number]
	if !known || p.gone[i] {
		p.err = errors.New("a job of no ranking is not replayed: switch ahead off")
		return
	}
	c := p.f.calls.all[i]
	p.pace.foundAll(c)
	c.deadline = deadline
	p.jobs[id], p.ids[i] = i, id
	priced := p.after("dispatch0")
	if priced != nil && priced.Op == "price" {
		at := priced.Values
		at.Float()
		at.Time()
		p.f.now = at.Time()
	}
	again := p.ran[i]
	if again {
		if !c.full {
			p.differ("line %d: the server had no room to continue what is cached, the node had", p.lines[p.at].Number)
		}
		p.n.restart(c)
		p.ran[i] = false
	} else if pl := p.places[place]; pl != nil {
		c.place, c.admitted = *pl, true
		p.held[place] = i
	}
	price, queued := p.n.add(i, arrival)
	p.compare("cost", fmt.Sprint(rows, keys), fmt.Sprint(c.queue.Rows, c.queue.Keys))
	if c.admitted && !again {
		p.then("dispatch0", "takes", price.Takes, max(0, price.Late))
	}
	switch {
	case queued:
		p.then("dispatch0", "queued")
	case price.Late <= 0:
		p.then("dispatch0", "full")
	}
}

// after returns the next line of a room, or nil.
func (p *player) after(room string) *record.Line {
	for _, l := range p.lines[p.at+1:] {
		if l.Room == room {
			return l
		}
	}
	return nil
}

// step gives a free engine its next batch.
func (p *player) step(v *record.Values) {
	e := v.Int()
	p.f.now = v.Time()
	jobs, gone, tries, at := p.n.choose()
	ids := func(jobs []schedule.Job) (ids []uint64) {
		for i := range jobs {
			ids = append(ids, p.ids[int32(jobs[i].ID)])
		}
		return ids
	}
	if tries {
		p.then("dispatch0", "run", []uint64{}, append(ids(jobs), ids(gone)...), at)
		p.then("dispatch0", "tries", ids(jobs)[0])
	} else {
		p.then("dispatch0", "run", ids(jobs), ids(gone), at)
	}
	if len(jobs) == 0 {
		return
	}
	p.pace.launch(e, jobs)
	for _, i := range p.n.engines[e].calls {
		p.ran[i] = true
	}
}

// remove takes a job whose deadline passed out of the queue.
func (p *player) remove(v *record.Values) {
	id, was := v.Uint64(), v.Bool()
	i := p.jobs[id]
	removed := p.n.batcher.Remove(uint64(i))
	if removed {
		p.n.dequeue(&p.f.calls.all[i].queue)
	}
	p.compare("removal", fmt.Sprint(was), fmt.Sprint(removed))
}

// leave ends a request's place.
func (p *player) leave(v *record.Values) {
	id, now := v.Int(), v.Time()
	pl := p.places[id]
	if pl == nil {
		return // the node refused it
	}
	if i, queued := p.held[id]; queued {
		pl = &p.f.calls.all[i].place
		if p.ran[i] {
			pl.Done(true)
		}
	}
	delete(p.places, id)
	delete(p.held, id)
	p.n.admission.Leave(pl, now)
}

// reuse plays what happens to requests.
func (p *player) reuse(l *record.Line) {
	v := &l.Values
	switch l.Op {
	case "decide":
		p.decide(v)
	case "expect":
		f := v.Float()
		p.expects = append(p.expects, estimate{f, p.n.returns.Expect(f)})
	case "gain":
		f := v.Float()
		p.gains = append(p.gains, estimate{f, p.n.returns.Gain(f)})
	case "order":
		p.follows("prefix order", l)
	case "hit", "kept":
		p.follows("returns", l)
	case "left":
		p.left(p.f.calls.all[p.numbers[v.Int()]])
		p.pace.retry()
	case "blending", "investing", "reading":
		p.err = errors.New("a blended prompt or a read from disk is not replayed")
	case "end":
		v.Key()
		p.f.now = v.Time()
		computed, i := v.Bool(), p.numbers[v.Int()]
		c := p.f.calls.all[i]
		p.pace.foundAll(c)
		p.n.end(c)
		p.gone[i] = true
		p.leaving = append(p.leaving, c)
		if computed {
			p.ending = append(p.ending, c)
		}
		user := residency.Hash(p.f.keys.user(c.User))
		switch {
		case c.hit:
			p.then("reuse0", "hit", user)
		case c.reuse && c.order == plan.UserFirst:
			p.then("reuse0", "kept", user, c.returns)
		}
	}
}

// publish publishes what a call that ends computed, when the server does.
func (p *player) publish(key plan.Key) {
	for _, c := range p.ending {
		for k, m := range c.made {
			if m.h.Key == key {
				c.made = slices.Delete(c.made, k, k+1)
				p.n.publish(m)
				return
			}
		}
	}
}

// left ends a call. It publishes what the server has not.
func (p *player) left(c *call) {
	p.leaving = slices.DeleteFunc(p.leaving, func(o *call) bool { return o == c })
	k := slices.Index(p.ending, c)
	for _, m := range c.made {
		if k >= 0 {
			p.n.publish(m)
		} else {
			m.s.unpin(m.h)
		}
	}
	if k >= 0 {
		p.ending = slices.Delete(p.ending, k, k+1)
	}
	p.n.release(c)
}

// decide has the node decide about a request, and compares what it decides from.
func (p *player) decide(v *record.Values) {
	policy, err := schedule.ParsePolicy(v.Text())
	if err != nil {
		v.Fail(err)
		return
	}
	key, named := plan.Key(v.Key()), v.Bool()
	if !named && policy != schedule.None {
		p.err = errors.New("a user without an id is not replayed")
		return
	}
	said := *v // what the server decided from
	f := p.f
	v.Int()
	v.Int()
	v.Bool()
	f.prompt.question, f.prompt.perItem = v.Int(), v.Bool()
	f.scenario.orders = schedule.Orders(v.Int())
	c := &call{live: true}
	c.User, c.UserTokens = numbered(p.users, &f.keys.users, key), int32(v.Int())
	v.Ints()
	for _, tokens := range v.Ints() {
		c.ItemTokens = append(c.ItemTokens, int32(tokens))
	}
	v.Texts()
	v.Floats()
	for range 3 {
		v.Float()
	}
	v.Bool()
	v.Bool()
	queue, slack := v.Float(), v.Float()
	if v.Left() == 0 {
		p.err = errors.New("the request has no number: record it again with this version")
		return
	}
	at := p.visits[key]
	if len(at.items) != len(c.ItemTokens) {
		p.err = fmt.Errorf("the request has %d items, and %d were looked up", len(c.ItemTokens), len(at.items))
		return
	}
	for _, item := range at.items {
		c.Items = append(c.Items, numbered(p.items, &f.keys.items, item))
	}
	i := int32(len(f.calls.all))
	f.calls.all, p.gone, p.ran = append(f.calls.all, c), append(p.gone, false), append(p.ran, false)
	p.numbers[v.Int()] = i
	p.report.Requests++
	p.n.decided = func(in *schedule.Request, d *schedule.Decision) {
		p.compare("what is cached", inputs(&said), record.Text("", asked(in)...))
		p.then("reuse0", "order", d.Order, d.Reason, d.Reuse, d.User.Ms, d.User.Value, d.Item.Ms, d.Item.Value,
			int(d.User.Load), int(d.Item.Load))
	}
	p.n.saw = func(c *call, in *schedule.Request) { p.saw(&at.sight, c, in, queue) }
	f.now = at.at
	p.pace.find(c, func() { p.n.decide(c, slack, policy) })
}

// saw has a decision be made from what the node saw when the server looked, which was before it decided.
func (p *player) saw(s *sight, c *call, in *schedule.Request, queue float64) {
	copy(c.tiers, s.tiers)
	copy(in.ItemFrequency, s.uses)
	in.Frequency, in.Coldest = s.frequency, s.coldest
	if slices.Contains(p.backlogs[s.since:], queue) { // the log does not say when the server looked
		in.Queue = queue
	}
	in.Returns = pop(&p.expects, s.frequency, in.Returns)
	if !in.UserRoom {
		in.Returns *= pop(&p.gains, s.frequency, p.n.returns.Gain(s.frequency))
	}
}

// pop takes the first estimate for a frequency. If there is none, it returns now.
func pop(from *[]estimate, frequency, now float64) float64 {
	k := slices.IndexFunc(*from, func(e estimate) bool { return e.frequency == frequency })
	if k < 0 {
		return now
	}
	e := (*from)[k]
	*from = slices.Delete(*from, k, k+1)
	return e.value
}

// numbered returns the number of a key, which is a new one if the key is.
func numbered[N int32 | uint64](numbers map[plan.Key]N, all *[]plan.Key, key plan.Key) N {
	n, known := numbers[key]
	if !known {
		n = N(len(*all))
		numbers[key] = n
		*all = append(*all, key)
	}
	return n
}

// asked lists what a decision is made from as a log has it.
func asked(in *schedule.Request) []any {
	return []any{in.Preamble, in.LeadIn, in.SharedCached, in.Question, in.PerItem, int(in.Orders), in.User,
		in.UserCached[:],
		in.Items, record.Names(in.ItemTier), in.ItemFrequency, in.Frequency, in.Coldest, in.Returns, in.ReturnsKnown,
		in.UserRoom,
		in.Queue, in.Slack}
}

// inputs returns the values of a line up to its last one.
func inputs(v *record.Values) string {
	var b strings.Builder
	for v.Left() > 1 {
		b.WriteString(" " + v.Text())
	}
	return b.String()
}

// kv plays what happens to cached KV.
func (p *player) kv(l *record.Line) {
	v := &l.Values
	if l.Did {
		if p.closed || slices.Contains([]string{"tiers", "uses", "frequency"}, l.Op) {
			return // they are compared with what a decision is made from
		}
		was, now := strings.TrimPrefix(l.String(), l.Room+" . "), "nothing"
		if len(p.changes) > 0 {
			now, p.changes = p.changes[0], p.changes[1:]
		}
		p.compare("KV "+l.Op, was, now)
		return
	}
	switch l.Op {
	case "status":
		s := sight{keys: keysOf(v)}
		s.tiers = make([]plan.Tier, len(s.keys))
		p.n.items.books.Status(s.keys, s.tiers)
		p.sights = append(p.sights, s)
	case "wanted":
		keys := keysOf(v)
		v.Texts()
		at := v.Time()
		k := slices.IndexFunc(p.sights, func(s sight) bool { return slices.Equal(s.keys, keys) })
		if k < 0 {
			p.err = errors.New("the items were not looked up")
			return
		}
		s := p.sights[k]
		p.sights = slices.Delete(p.sights, k, k+1)
		s.uses = make([]float32, len(keys))
		p.n.hot.Items(keys, s.tiers, at, s.uses)
		p.wanted[at] = s
	case "user":
		key, at := plan.Key(v.Key()), v.Time()
		s := p.wanted[at]
		s.frequency, s.coldest = p.n.hot.User(key, at)
		s.since = max(0, len(p.backlogs)-1)
		p.visits[key] = visit{s.keys, at, s}
		delete(p.wanted, at)
	case "find":
		p.pace.found(v.Key())
	case "need":
		p.pace.need(l)
	case "publish":
		p.publish(v.Key())
		p.pace.retry()
	case "apply":
		p.n.hot.Apply(v.Time())
	case "model":
		p.train(v)
	case "resize":
		p.err = errors.New("a change of the memory's size is not replayed")
	case "insert", "match", "split":
		p.err = errors.New("a prompt of a user without an id is not replayed")
	case "delete":
		p.pace.reserved()
		p.close()
	}
}

// close ends the comparison when the server ends.
func (p *player) close() {
	if !p.closed {
		p.closed = true
		p.pace.close()
	}
}

func keysOf(v *record.Values) (keys []plan.Key) {
	for _, k := range v.Keys() {
		keys = append(keys, k)
	}
	return keys
}

// train has the node learn the model that came into use.
func (p *player) train(v *record.Values) {
	v.Text()
	learnt := v.Bool()
	lesson, level := p.n.users.books.Lesson()
	if lesson == nil {
		p.compare("eviction model", fmt.Sprint(learnt), "no lesson")
		return
	}
	m := lesson.Train(evict.TrainParams{})
	p.compare("eviction model", fmt.Sprint(learnt), fmt.Sprint(m != nil))
	p.n.users.books.Trained(level, m)
}

// ReplayFile replays a log, which may be gzipped.
func ReplayFile(path string) (*Replayed, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var in io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if in, err = gzip.NewReader(f); err != nil {
			return nil, fmt.Errorf("sim: %s: %w", path, err)
		}
	}
	return Replay(in)
}
