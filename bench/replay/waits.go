package replay

import (
	"grebe/internal/record"
	"grebe/residency"
	"grebe/schedule"
)

// answers has what a room decided since the last input of each kind, by the operation of the line that logs it. Lines
// of kinds that have no common lock may mix.
type answers map[string]string

func (a answers) decided(op string, values ...any) { a[op] = record.Text(op, values...) }

func (a answers) did(l *record.Line) (was, now string) {
	now, asked := a[l.Op]
	if delete(a, l.Op); !asked {
		return "", ""
	}
	return text(l), now
}

func (a answers) rest() []string { return nil }

// load replays how long a request and its batch wait for what is read.
type load struct{ answers }

func (l *load) in(r *record.Line, _ []*record.Line) {
	v := &r.Values
	switch r.Op {
	case "rest":
		within, pace := v.Time(), schedule.Pace{Token: v.Float()}
		near, again := pace.Near(&schedule.Reading{Left: v.Int(), Now: v.Int(), Begun: v.Bool(), Took: v.Time()}, within)
		l.decided("near", near, again)
	case "batch":
		patience, first, waited := v.Time(), v.Time(), v.Time()
		l.decided("most", schedule.BatchWait(patience, first, waited, v.Int(), v.Int()))
	}
}

// pace replays what is learnt of a disk.
type pace struct {
	answers
	core schedule.Pace
}

func (p *pace) in(r *record.Line, _ []*record.Line) {
	v := &r.Values
	if r.Op == "read" {
		p.core.Observe(v.Int(), v.Time(), 0)
		p.decided("pace", p.core.Token)
	}
}

// below replays whether a tier below memory hangs.
type below struct{ answers }

func (b *below) in(r *record.Line, _ []*record.Line) {
	v := &r.Values
	if r.Op == "longest" {
		b.decided("hangs", residency.Hangs(v.Time()))
	}
}
