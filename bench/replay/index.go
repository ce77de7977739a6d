package replay

import (
	"grebe/internal/record"
	"grebe/plan"
	"grebe/residency"
)

// hotness replays how hot users and items are. In logs of servers that had an index of entries beside the store, it is
// a room of its own, which was told by the store where users are; in others it is part of the store's.
type hotness struct {
	*residency.Hotness
	users map[plan.Key]bool // of a room of its own: users that the index knew
}

// step does what an input says, and returns the decision that follows; false when it is of another kind.
func (h *hotness) step(op string, v *record.Values) (decision string, ok bool) {
	switch op {
	case "open", "hotness":
		c := residency.HotnessConfig{Users: v.Int(), Items: v.Int(), Window: v.Time(), Buffer: v.Int()}
		var err error
		if h.Hotness, err = residency.NewHotness(c); err != nil {
			v.Fail(err)
		}
	case "user":
		frequency, coldest := h.User(v.Key(), v.Time())
		return record.Text("frequency", frequency, coldest), true
	case "wanted":
		keys := keysOf(v)
		tiers := make([]plan.Tier, len(keys))
		for i, name := range v.Texts() {
			tiers[i] = tier(v, name)
		}
		uses := make([]float32, len(keys))
		h.Items(keys, tiers, v.Time(), uses)
		return record.Text("uses", uses), true
	case "use":
		h.NoteUser(v.Key(), v.Time(), v.Bool())
	case "items":
		h.NoteItems(keysOf(v), v.Time())
	case "apply":
		h.Apply(v.Time())
	default:
		return "", false
	}
	return "", true
}

func keysOf(v *record.Values) []plan.Key {
	var keys []plan.Key
	for _, k := range v.Keys() {
		keys = append(keys, k)
	}
	return keys
}

// index is the room of such an index. Where it said that entries are is what the store had told it: that is not
// compared.
type index struct {
	hotness
	next string // the decision that follows
}

func (x *index) in(l *record.Line, _ []*record.Line) {
	v := &l.Values
	if l.Op == "apply" { // all is counted at once
		for now := v.Time(); x.Apply(now); {
		}
		return
	}
	var ok bool
	if x.next, ok = x.step(l.Op, v); ok {
		return
	}
	switch l.Op {
	case "put":
		key := plan.Key(v.Key())
		if v.Text() != plan.User.String() {
			return
		}
		v.Int()
		if x.users[key] = true; tier(v, v.Text()) != plan.Disk {
			x.Items(nil, nil, v.Time(), nil) // the time of the estimate
			x.Hold(key)
		}
	case "found":
		if key := plan.Key(v.Key()); v.Text() == plan.User.String() {
			x.users[key] = true
		}
	case "lower", "drop":
		if key := plan.Key(v.Key()); x.users[key] {
			x.Leave(key)
		}
	}
}

func (x *index) did(l *record.Line) (was, now string) {
	if x.next == "" {
		return "", ""
	}
	now, x.next = x.next, ""
	return text(l), now
}

func (x *index) rest() []string { return nil }
