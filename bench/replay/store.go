package replay

import (
	"fmt"
	"slices"
	"strings"

	"grebe/evict"
	"grebe/internal/record"
	"grebe/plan"
	"grebe/residency"
)

// held is an entry of a store that is replayed.
type held = residency.Held[struct{}]

// store replays what is held where. What the books did since the last input waits to be compared with the lines that
// follow it.
type store struct {
	config residency.Config
	core   *residency.Core[struct{}]
	hot    hotness
	waits  []string

	moving  underWay
	writing underWay
	runs    map[plan.Key]*held
	need    *need             // who leaves is being asked
	insert  *insert           // a sequence is being inserted
	asked   residency.Request // that uses runs
	astray  bool              // the policy asks for other entries than it did: what follows says nothing
	before  bool              // the log is of a server whose kv decided itself: see before.go
	closed  bool              // the store is being closed, which no input says
}

// underWay are entries that are being copied, the first begun first. One that was deleted meanwhile may be followed by
// another under its key.
type underWay map[plan.Key][]*held

func (u underWay) begin(h *held) { u[h.Key] = append(u[h.Key], h) }

// end returns the entry whose copy ended: the i-th under its key; nil when there is none.
func (u underWay) end(key plan.Key, i int) *held {
	all := u[key]
	if len(all) == 0 {
		return nil
	}
	h := all[i]
	u[key] = slices.Delete(all, i, i+1)
	return h
}

// need is a level that has no room, and what its policy was told of entries.
type need struct {
	level int
	pins  []pin
}

type pin struct {
	key plan.Key
	may bool
}

// insert is a sequence that becomes known.
type insert struct {
	tokens, start          int
	added, parent, covered plan.Key
	bytes                  int64
}

func newStore() *store {
	return &store{
		config: residency.Config{Chunk: 64}, moving: underWay{}, writing: underWay{}, runs: map[plan.Key]*held{},
	}
}

// name returns what a log calls a key.
func name(k plan.Key) string { return strings.TrimRight(string(k[8:]), "\x00") }

// level returns the index of a level.
func (s *store) level(v *record.Values) int {
	at := tier(v, v.Text())
	for i, l := range s.config.Levels {
		if l.Tier == at {
			return i
		}
	}
	v.Fail(fmt.Errorf("the store has no level %v", at))
	return 0
}

func (s *store) in(l *record.Line, then []*record.Line) {
	if s.astray {
		return
	}
	op, v := l.Op, &l.Values
	if s.closed {
		s.waits, s.astray = append(s.waits, "no removal without a reason: the store is not being closed"), true
		return
	}
	switch op {
	case "open":
		s.config.Policy, s.config.Below, s.config.Predict = v.Text(), v.Bool(), v.Bool()
		return
	case "level":
		s.config.Levels = append(s.config.Levels, residency.LevelConfig{
			Tier: tier(v, v.Text()), Slots: v.Int(), Bytes: v.Int64()})
		s.before = v.Left() > 0
		return
	case "hotness":
		s.hot.step(op, v)
		return
	case "pin":
		s.need.pins = append(s.need.pins, pin{v.Key(), v.Bool()})
		return
	}
	if s.core == nil {
		core, err := residency.New[struct{}](s.config)
		if err != nil {
			v.Fail(err)
			return
		}
		core.SetTrace(func(op residency.Op, h *held, at plan.Tier) { s.waits = append(s.waits, change(op, h, at)) })
		core.SetHotness(s.hot.Hotness)
		s.core = core
	}
	if op == "split" {
		s.split(v)
	}
	s.flush()
	if !s.before || !s.stepBefore(op, v, then) {
		s.step(op, v)
	}
}

// change is a change of the books as a log has it.
func change(op residency.Op, h *held, at plan.Tier) string {
	switch text := op.String() + " " + name(h.Key); op {
	case residency.DidPut:
		kind := "prefix"
		if !h.Run {
			kind = h.Kind.String()
		}
		return fmt.Sprintf("%s %v %s %d %d", text, at, kind, h.Tokens, h.Bytes)
	case residency.DidTake, residency.DidLeave, residency.DidHit:
		return text + " " + at.String()
	default:
		return text
	}
}

// step does what an input says.
func (s *store) step(op string, v *record.Values) {
	c := s.core
	if decision, ok := s.hot.step(op, v); ok {
		if decision != "" {
			s.waits = append(s.waits, decision)
		}
		return
	}
	switch op {
	case "status":
		keys := keysOf(v)
		tiers := make([]plan.Tier, len(keys))
		c.Status(keys, tiers)
		s.waits = append(s.waits, record.Text("tiers", record.Names(tiers)))
	case "publish":
		s.publish(v)
	case "asked":
		if h := c.Get(v.Key()); h != nil {
			c.Asked(h, v.Int(), v.Int())
		}
	case "find":
		s.find(v.Key(), v.Bool())
	case "read":
		c.Read(v.Key())
	case "need":
		s.need = &need{level: s.level(v)}
	case "moved":
		s.moved(v)
	case "delete":
		key := v.Key()
		if h := s.runs[key]; h != nil {
			c.TakeRun(h)
			delete(s.runs, key)
		} else {
			c.Delete(key)
		}
	case "clean":
		if h := c.Dirty(s.level(v)); h != nil {
			s.writing.begin(h)
		}
	case "written":
		s.written(v)
	case "stored":
		key := v.Key()
		kind, err := plan.ParseKind(v.Text())
		if err != nil {
			v.Fail(err)
		}
		c.Stored(key, residency.Entry{Kind: kind, Tokens: int32(v.Int()), Owner: uint32(v.Int())})
	case "lost":
		c.Lost(v.Key())
	case "resize":
		c.Resize(s.level(v), v.Int64())
	case "model":
		s.train(v)
	case "match":
		if h := s.runs[v.Key()]; h != nil {
			s.asked = c.Matched(h, v.Int(), v.Int())
		}
	case "insert":
		s.insert = &insert{tokens: v.Int(), start: v.Int(), added: s.run(v), bytes: v.Int64(), parent: s.run(v),
			covered: s.run(v)}
	}
}

// moved ends a copy to a level. Of two under a key the log of a server whose kv decided itself says which one it was.
func (s *store) moved(v *record.Values) {
	key, level, copied := plan.Key(v.Key()), s.level(v), v.Bool()
	i := 0
	if all := s.moving[key]; v.Left() > 0 && len(all) > 1 {
		i = max(0, slices.IndexFunc(all, func(h *held) bool { return h == s.core.Get(key) }))
		if held := v.Bool(); !held {
			i = 1 - min(i, 1)
		}
	}
	h := s.moving.end(key, i)
	if h == nil {
		v.Fail(fmt.Errorf("%s is not being moved", name(key)))
		return
	}
	s.core.Moved(h, level, copied)
}

// written ends a write. They end in turn, but for one that found no place in the queue, which ends at once.
func (s *store) written(v *record.Values) {
	key, ok, failed := plan.Key(v.Key()), v.Bool(), v.Bool()
	i := 0
	if !ok && !failed {
		i = max(0, len(s.writing[key])-1)
	}
	h := s.writing.end(key, i)
	if h == nil {
		v.Fail(fmt.Errorf("%s is not being written", name(key)))
		return
	}
	s.core.Written(h, ok, failed)
}

// find wants an entry.
func (s *store) find(key plan.Key, inPlace bool) {
	if h, do := s.core.Use(key, func(*held) bool { return inPlace }); do == residency.Up {
		s.moving.begin(h)
	}
}

// run reads the name of a run; none is the zero key.
func (s *store) run(v *record.Values) (k plan.Key) {
	if !v.None() {
		k = v.Key()
	}
	return k
}

func (s *store) publish(v *record.Values) {
	h := &held{Key: v.Key()}
	kind, err := plan.ParseKind(v.Text())
	if err != nil {
		v.Fail(err)
	}
	level := s.level(v)
	h.Kind, h.Tokens, h.Bytes, h.Named = kind, v.Int(), v.Int64(), v.Bool()
	if v.Bool() {
		h.Fetched()
	}
	s.put(h, level, v.Bool())
}

// put publishes an entry; same: the one under its key has the same memory.
func (s *store) put(h *held, level int, same bool) {
	if _, _, write := s.core.Publish(h, level, same); write {
		s.writing.begin(h)
	}
}

// train makes the model that came into use.
func (s *store) train(v *record.Values) {
	level, learnt := s.level(v), v.Bool()
	lesson, of := s.core.Lesson()
	if lesson == nil || of != level {
		v.Fail(fmt.Errorf("no lesson of that level is complete"))
		return
	}
	m := lesson.Train(evict.TrainParams{})
	if (m != nil) != learnt {
		s.waits = append(s.waits, fmt.Sprintf("model %v", m != nil))
	}
	s.core.Trained(level, m)
}

// split cuts a run in two.
func (s *store) split(v *record.Values) {
	lower, upper := v.Key(), v.Key()
	first := &held{Key: upper, Kind: prefix, Tokens: v.Int(), Bytes: v.Int64()}
	rest := &held{Key: lower, Kind: prefix, Tokens: v.Int(), Bytes: v.Int64()}
	if s.runs[lower] == nil {
		v.Fail(fmt.Errorf("no run %s is known", name(lower)))
		return
	}
	s.cut(first, rest)
}

// cut puts two runs in place of the one that has the key of the second.
func (s *store) cut(first, rest *held) {
	s.core.Split(s.runs[rest.Key], first, rest)
	s.runs[rest.Key], s.runs[first.Key] = rest, first
}

// prefix is the kind of runs, as kv counts them.
const prefix = plan.Beam + 1

// flush does what had to wait until all of its lines were read.
func (s *store) flush() {
	none := plan.Key{}
	if n := s.insert; n != nil {
		s.insert = nil
		if n.covered != none {
			s.core.TakeRun(s.runs[n.covered])
			delete(s.runs, n.covered)
		}
		if n.added != none {
			s.asked = s.core.Inserted(s.runs[n.parent], n.tokens, n.start)
			h := &held{Key: n.added, Kind: prefix, Tokens: n.tokens - n.start, Bytes: n.bytes}
			s.runs[n.added] = h
			s.core.PutRun(h, s.asked, n.start)
		}
	}
	if n := s.need; n != nil {
		s.need = nil
		s.leave(n)
	}
}

// leave asks who leaves a level, and answers as the owner did.
func (s *store) leave(n *need) {
	h, exit := s.core.Need(n.level, func(h *held) bool {
		if len(n.pins) == 0 || n.pins[0].key != h.Key {
			if !s.astray {
				s.waits = append(s.waits, "pin "+name(h.Key))
			}
			s.astray = true
			return true // one that may go ends the search
		}
		may := n.pins[0].may
		n.pins = n.pins[1:]
		return may
	})
	if len(n.pins) == 1 && h != nil && n.pins[0] == (pin{h.Key, true}) {
		n.pins = nil // older policies asked again of an entry that may go when nobody else was to go in its place
	}
	if len(n.pins) > 0 && !s.astray {
		s.waits, s.astray = append(s.waits, "no pin "+name(n.pins[0].key)), true
	}
	switch {
	case h == nil:
	case exit == residency.Lower:
		s.moving.begin(h)
	case exit == residency.Forget:
		delete(s.runs, h.Key)
	}
}

func (s *store) did(l *record.Line) (was, now string) {
	if s.astray && len(s.waits) == 0 {
		return "", ""
	}
	was = text(l)
	if s.before {
		was = sinceBefore(l)
	}
	s.flush()
	if len(s.waits) == 0 {
		s.follow(l)
	}
	if len(s.waits) == 0 {
		return was, "nothing"
	}
	now, s.waits = s.waits[0], s.waits[1:]
	return was, now
}

// follow does what no input says: uses of the path to a run, and removals when the store is closed.
func (s *store) follow(l *record.Line) {
	key := l.Values.Key()
	run := s.runs[key]
	switch {
	case l.Op == "hit" && run != nil:
		s.core.UseRun(run, s.asked)
	case l.Op == "take" && run != nil:
		s.closed = true
		s.core.TakeRun(run)
	case l.Op == "take":
		s.closed = true
		s.core.Delete(key)
	}
}

// rest returns what was done that no line tells.
func (s *store) rest() []string {
	if s.need != nil || s.insert != nil {
		return nil // it is not done yet
	}
	out := s.waits
	s.waits = nil
	return out
}
