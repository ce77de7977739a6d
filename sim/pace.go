package sim

import (
	"fmt"
	"iter"
	"slices"

	"grebe/internal/record"
	"grebe/plan"
	"grebe/schedule"
)

// pace has a replayed node do things in the order of the log. A server reserves memory for a batch while other requests
// publish and release KV, and a request looks for its KV while other KV is evicted. So the node pauses before such a
// step until the log has it.
//
// Logs of older servers do not have the order in which memory was taken and freed. There the node takes memory when the
// batch begins, and waits only if there is none.
type pace struct {
	p       *player
	paged   bool // the log has the order in which memory was taken and freed
	batch   reserving
	finding []*finding // calls that look for KV, in the order of their decisions
	finds   *finding   // the one that runs
	last    string     // what the node took last
	// Memory that only one of both has freed, by how often: early the server, late the node.
	early, late map[run]int
	taken       map[run]bool
	pins        map[plan.Key]bool // entries that the server asked about for an eviction, and whether they may go
}

// run is memory of a level.
type run struct {
	level, first int32
	pages        int64
}

// A step is what a reservation waits for.
type step uint8

const (
	taking step = iota
	evicting
)

// reserving is a batch for which memory is reserved.
type reserving struct {
	resume func() (step, bool) // nil: nothing is reserved
	stop   func()
	yield  func(step) bool
	next   step
	runs   bool // it is not paused
	again  bool // look for room instead of an eviction
}

// launch begins a batch.
func (w *pace) launch(e int, jobs []schedule.Job) {
	w.reserved()
	b := &w.batch
	b.resume, b.stop = iter.Pull(func(yield func(step) bool) {
		b.yield = yield
		w.p.n.launch(e, jobs)
	})
	w.reserve(false)
}

// reserve continues a reservation up to the next step.
func (w *pace) reserve(again bool) {
	b := &w.batch
	b.again, b.runs = again, true
	next, paused := b.resume()
	if b.next, b.runs = next, false; !paused {
		b.resume = nil
	}
}

// reserved ends the reservation of a batch that was computed. If the node is not done, it decides otherwise than the
// server.
func (w *pace) reserved() {
	for w.batch.resume != nil {
		w.reserve(false)
	}
}

// waits reports whether a reservation is paused before a step.
func (w *pace) waits(s step) bool { return w.batch.resume != nil && w.batch.next == s }

// retry looks for room that another request freed, where the log does not say when that was.
func (w *pace) retry() {
	if !w.paged && w.waits(evicting) {
		w.reserve(true)
	}
}

func (w *pace) take() {
	if w.paged && w.batch.runs {
		w.batch.yield(taking)
	}
}

func (w *pace) took(level int, first int32, bytes int64, ok bool) {
	if w.last = "full"; ok && w.paged {
		w.last = fmt.Sprint("at ", first)
		w.taken[run{int32(level), first, bytes / w.p.n.users.mem[level].page}] = true
	}
}

func (w *pace) lacks() (again bool) {
	if !w.batch.runs {
		return false
	}
	w.batch.yield(evicting)
	return w.batch.again
}

// memory plays a line about memory.
func (w *pace) memory(l *record.Line) {
	v := &l.Values
	switch {
	case l.Did:
		w.p.compare("memory", record.Text(l.Op, texts(v)...), w.last)
	case l.Op == "take":
		if w.last = "nothing"; w.waits(taking) {
			w.reserve(false)
		}
	case l.Op == "put":
		at := w.level(v.Text())
		r := run{int32(at), int32(v.Int()), v.Int64()}
		if w.late[r] > 0 {
			lower(w.late, r)
		} else {
			w.early[r]++
		}
		if !w.taken[r] {
			w.p.differ("line %d: the server frees memory that the node has not taken: %s", l.Number, l)
			return
		}
		delete(w.taken, r)
		m := &w.p.n.users.mem[at]
		m.put(r.first, r.pages*m.page)
	}
}

func texts(v *record.Values) (all []any) {
	for v.Left() > 0 {
		all = append(all, v.Text())
	}
	return all
}

// level returns the number of the level that a log names.
func (w *pace) level(name string) int {
	return max(0, slices.IndexFunc(w.p.n.users.tiers, func(t plan.Tier) bool { return t.String() == name }))
}

// put reports whether memory that the node frees is free now. Else it is free when the server freed it, which may have
// been before.
func (w *pace) put(c *chunk) (now bool) {
	if !w.paged {
		return true
	}
	s := w.p.n.users
	r := run{c.level, c.first, int64(c.tokens) * s.token / s.mem[c.level].page}
	if w.early[r] > 0 {
		lower(w.early, r)
	} else {
		w.late[r]++
	}
	return false
}

func lower(counts map[run]int, r run) {
	if counts[r]--; counts[r] == 0 {
		delete(counts, r)
	}
}

// close compares what both have freed. A log may end before a batch has.
func (w *pace) close() {
	if w.batch.resume != nil {
		return
	}
	if n, k := len(w.early), len(w.late); n+k > 0 {
		w.p.differ("at the end: %d parts of memory are free in the server only, %d in the node only", n, k)
	}
}

// need evicts where the server did. Behind the line are the entries that the server asked about.
func (w *pace) need(l *record.Line) {
	w.pins = map[plan.Key]bool{}
	for _, next := range w.p.lines[w.p.at+1:] {
		if next.Room != l.Room {
			continue
		}
		if next.Op != "pin" {
			break
		}
		v := next.Values
		key := plan.Key(v.Key())
		w.pins[key] = v.Bool()
	}
	if w.waits(evicting) {
		w.reserve(false)
	}
	w.pins = nil
}

// may reports whether an entry may be evicted. While a call leaves, the log says which entries it has released.
func (w *pace) may(h *held) bool {
	may := h.Value.refs == 1
	said, asked := w.pins[h.Key]
	if !asked || said == may {
		return may
	}
	if !slices.ContainsFunc(w.p.leaving, func(c *call) bool { return w.p.f.keys.of(c, h.Key) }) {
		w.p.compare("use", fmt.Sprint(name(h.Key), " may go: ", said), fmt.Sprint(name(h.Key), " may go: ", may))
		return may
	}
	return said
}

// finding is a call that decided and looks for the KV that it uses.
type finding struct {
	call   *call
	keys   []plan.Key // node.keys
	order  []plan.Key // in which it looks
	resume func() (plan.Key, bool)
	stop   func()
	yield  func(plan.Key) bool
	next   plan.Key // entry before which it is paused
	there  bool     // the server found it
	done   bool
}

// find has a call decide and look for its KV.
func (w *pace) find(c *call, decide func()) {
	f := &finding{call: c}
	f.resume, f.stop = iter.Pull(func(yield func(plan.Key) bool) {
		f.yield = yield
		decide()
	})
	w.finding = append(w.finding, f)
	w.proceed(f, false)
	k := &w.p.f.keys
	f.keys = slices.Clone(w.p.n.keys)
	f.order = append([]plan.Key{k.shared(0), k.shared(1), k.user(c.User)}, f.keys...)
}

// proceed continues a call up to the next entry. There says whether the server found the one before which the call is
// paused.
func (w *pace) proceed(f *finding, there bool) {
	if f.keys != nil {
		w.p.n.keys = append(w.p.n.keys[:0], f.keys...)
	}
	w.finds, f.there = f, there
	next, paused := f.resume()
	if w.finds = nil; paused {
		f.next = next
		return
	}
	f.done = true
	w.finding = slices.DeleteFunc(w.finding, func(o *finding) bool { return o == f })
}

func (w *pace) look(key plan.Key) (there bool) {
	if w.finds == nil {
		return true
	}
	f := w.finds
	f.yield(key)
	return f.there
}

// found has a call look for an entry that the server found. Entries before it were not found.
func (w *pace) found(key plan.Key) {
	var may []*finding
	for _, f := range w.finding {
		if f.reaches(f.next, key) {
			may = append(may, f)
		}
	}
	if len(may) == 0 {
		return
	}
	f := w.which(may, key)
	for !f.done && f.next != key {
		w.proceed(f, false)
	}
	if !f.done {
		w.proceed(f, true)
	}
}

// reaches reports whether a call looks for a key at or after another one.
func (f *finding) reaches(from, key plan.Key) bool {
	k := slices.Index(f.order, from)
	return k >= 0 && slices.Contains(f.order[k:], key)
}

// which returns the call that looks for a key: lines do not say that, but the next thing that only one of them can do
// does.
func (w *pace) which(may []*finding, key plan.Key) *finding {
	if len(may) == 1 {
		return may[0]
	}
	for _, l := range w.p.lines[w.p.at+1:] {
		v := l.Values
		var can []*finding
		switch l.Room + " " + l.Op {
		case "kv0 find":
			next := plan.Key(v.Key())
			if next == key {
				return may[0] // another one finds it before that matters
			}
			for _, f := range may {
				if f.reaches(key, next) {
					can = append(can, f)
				}
			}
		case "dispatch0 add":
			for range 6 {
				v.Text()
			}
			c := w.p.f.calls.all[w.p.numbers[v.Int()]]
			for _, f := range may {
				if f.call == c {
					can = append(can, f)
				}
			}
		}
		if len(can) == 1 {
			return can[0]
		}
	}
	return may[0]
}

// foundAll ends the search of a call.
func (w *pace) foundAll(c *call) {
	k := slices.IndexFunc(w.finding, func(f *finding) bool { return f.call == c })
	if k < 0 {
		return
	}
	for f := w.finding[k]; !f.done; {
		w.proceed(f, false)
	}
}

// stop ends what is paused. What it decides is not compared.
func (w *pace) stop() {
	w.p.report = &Replayed{Decisions: map[string]int{}}
	if w.batch.resume != nil {
		w.batch.stop()
	}
	for _, f := range w.finding {
		f.stop()
	}
}
