package replay

import (
	"fmt"
	"strings"

	"grebe/evict"
	"grebe/internal/record"
	"grebe/plan"
	"grebe/residency"
)

// held is an entry of a store that is replayed.
type held = residency.Held[struct{}]

// store replays what is held where. What the books did since the last input waits to be compared with the lines that follow it.
type store struct {
	config residency.Config
	core   *residency.Core[struct{}]
	waits  []string

	moving  map[plan.Key]*held
	writing map[plan.Key]*held
	runs    map[plan.Key]*held
	need    *need             // who leaves is being asked
	insert  *insert           // a sequence is being inserted
	asked   residency.Request // that uses runs
	astray  bool              // the policy asks for other entries than it did: what follows says nothing
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
		config: residency.Config{Chunk: 64}, moving: map[plan.Key]*held{}, writing: map[plan.Key]*held{}, runs: map[plan.Key]*held{},
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

func (s *store) in(op string, v *record.Values) {
	if s.astray {
		return
	}
	switch op {
	case "open":
		s.config.Policy, s.config.Below, s.config.Predict = v.Text(), v.Bool(), v.Bool()
		return
	case "level":
		s.config.Levels = append(s.config.Levels, residency.LevelConfig{Tier: tier(v, v.Text()), Slots: v.Int(), Bytes: v.Int64()})
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
		s.core = core
	}
	if op == "split" {
		s.split(v)
	}
	s.flush()
	s.step(op, v)
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
	switch op {
	case "publish":
		s.publish(v)
	case "asked":
		if h := c.Get(v.Key()); h != nil {
			c.Asked(h, v.Int(), v.Int())
		}
	case "find":
		key, inPlace := v.Key(), v.Bool()
		if h, do := c.Use(key, func(*held) bool { return inPlace }); do == residency.Up {
			s.moving[key] = h
		}
	case "need":
		s.need = &need{level: s.level(v)}
	case "moved":
		key := v.Key()
		h := s.moving[key]
		if h == nil {
			v.Fail(fmt.Errorf("%s is not being moved", name(key)))
			return
		}
		delete(s.moving, key)
		c.Moved(h, s.level(v), v.Bool())
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
			s.writing[h.Key] = h
		}
	case "written":
		key := v.Key()
		h := s.writing[key]
		if h == nil {
			v.Fail(fmt.Errorf("%s is not being written", name(key)))
			return
		}
		delete(s.writing, key)
		c.Written(h, v.Bool(), v.Bool())
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
		s.insert = &insert{tokens: v.Int(), start: v.Int(), added: s.run(v), bytes: v.Int64(), parent: s.run(v), covered: s.run(v)}
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
	if _, _, write := s.core.Publish(h, level, v.Bool()); write {
		s.writing[h.Key] = h
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
	whole := s.runs[lower]
	if whole == nil {
		v.Fail(fmt.Errorf("no run %s is known", name(lower)))
		return
	}
	s.core.Split(whole, first, rest)
	s.runs[lower], s.runs[upper] = rest, first
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
	if len(n.pins) > 0 && !s.astray {
		s.waits, s.astray = append(s.waits, "no pin "+name(n.pins[0].key)), true
	}
	switch {
	case h == nil:
	case exit == residency.Lower:
		s.moving[h.Key] = h
	case exit == residency.Forget:
		delete(s.runs, h.Key)
	}
}

func (s *store) did(op string, v *record.Values) string {
	if s.astray && len(s.waits) == 0 {
		return ""
	}
	s.flush()
	if op == "hit" && len(s.waits) == 0 {
		if h := s.runs[v.Key()]; h != nil { // of the path to a run
			s.core.UseRun(h, s.asked)
		}
	}
	if len(s.waits) == 0 {
		return "nothing"
	}
	next := s.waits[0]
	s.waits = s.waits[1:]
	return next
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
