package replay

import (
	"fmt"
	"strings"

	"grebe/internal/record"
	"grebe/plan"
)

// Before package residency, kv decided itself what is held where, and recorded less of its inputs. What they do not
// tell is taken from the decisions that followed: how many bytes a run has, behind which other one it was put, and
// whether an entry that was published again has the memory that it had. Nothing of this is chosen by the books.

// stepBefore does what an input of such a log says; false when it is as those of today.
func (s *store) stepBefore(op string, v *record.Values, then []*record.Line) bool {
	switch op {
	case "publish":
		h := &held{Key: v.Key()}
		kind, err := plan.ParseKind(v.Text())
		if err != nil {
			v.Fail(err)
		}
		level := s.level(v)
		h.Kind, h.Tokens, h.Bytes, h.Named = kind, v.Int(), v.Int64(), v.Int() > 0
		if v.Bool() {
			h.Fetched()
		}
		s.put(h, level, len(then) > 0 && then[0].Op == "hit" || len(then) == 0)
	case "find": // all memory that devices of such logs have can be used in place
		s.find(v.Key(), true)
	case "insert":
		s.insertBefore(v, then)
	default:
		return false
	}
	return true
}

// insertBefore makes a sequence known.
func (s *store) insertBefore(v *record.Values, then []*record.Line) {
	n := &insert{tokens: v.Int(), start: v.Int(), added: s.run(v)}
	upper, lower := s.run(v), s.run(v)
	n.covered = s.run(v)
	var first, rest *held
	for _, l := range then {
		d := l.Values
		key := plan.Key(d.Key())
		switch {
		case l.Op == "put":
			d.Text()
			d.Text()
			h := &held{Key: key, Kind: prefix, Tokens: d.Int(), Bytes: d.Int64()}
			switch key {
			case n.added:
				n.bytes = h.Bytes
			case upper:
				first = h
			case lower:
				rest = h
			}
		case l.Op == "hit" && n.parent == plan.Key{}: // the last run of the path is used first
			n.parent = key
		}
	}
	if lower != (plan.Key{}) {
		if first == nil || rest == nil || s.runs[lower] == nil {
			v.Fail(fmt.Errorf("run %s is not cut in two", name(lower)))
			return
		}
		s.cut(first, rest)
	}
	s.insert = n
}

// sinceBefore is a decision as logs have it today.
func sinceBefore(l *record.Line) string {
	was := text(l)
	switch l.Op {
	case "take":
		if out, chosen := strings.CutSuffix(was, " +"); chosen {
			return "leave" + strings.TrimPrefix(out, "take")
		}
		return strings.TrimSuffix(was, " -")
	case "drop":
		return strings.TrimRight(was, " +-")
	}
	return was
}
