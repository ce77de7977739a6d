// Package replay feeds a record to the pure rooms and compares what they decide with what was decided.
package replay

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"grebe/internal/record"
	"grebe/schedule"
)

// Report says how a replay went.
type Report struct {
	Decisions   map[string]int // that were compared, by room and operation, such as "reuse order"
	Differences []string       // the first ones
	Different   int            // how many there are
}

// room replays the lines of one room.
type room interface {
	// in takes an input.
	in(op string, v *record.Values)
	// did returns what the room decides; "" when it has no opinion on that kind of line.
	did(op string, v *record.Values) string
	// rest returns what the room decided since and no line told.
	rest() []string
}

// kept bounds the differences that are told.
const kept = 20

// Run replays a log. An error says why it cannot be read; differences are in the report.
func Run(r io.Reader) (*Report, error) {
	report := &Report{Decisions: map[string]int{}}
	rooms := map[string]room{}
	for l, err := range record.Read(r) {
		if err != nil {
			return report, err
		}
		kind := strings.TrimRight(l.Room, "0123456789")
		to := rooms[l.Room]
		if to == nil {
			if to = open(kind); to == nil {
				continue
			}
			rooms[l.Room] = to
		}
		was := l.String()
		if !l.Did {
			for _, now := range to.rest() {
				report.differ("line %d: before it, %s decided nothing more, and %q now", l.Number, l.Room, now)
			}
			if to.in(l.Op, &l.Values); l.Values.Failed() != nil {
				return report, fmt.Errorf("line %d: %w: %s", l.Number, l.Values.Failed(), was)
			}
			continue
		}
		now := to.did(l.Op, &l.Values)
		if now == "" {
			continue
		}
		report.Decisions[kind+" "+l.Op]++
		if want := text(l); now != want {
			report.differ("line %d: %s decided %q, and %q now", l.Number, l.Room, want, now)
		}
	}
	if len(report.Decisions) == 0 {
		return report, errors.New("replay: the log has no decision that can be replayed")
	}
	return report, nil
}

func (r *Report) differ(format string, args ...any) {
	if r.Different++; len(r.Differences) < kept {
		r.Differences = append(r.Differences, fmt.Sprintf(format, args...))
	}
}

// text is a decision's operation and values.
func text(l *record.Line) string {
	return strings.TrimPrefix(l.String(), l.Room+" . ")
}

func open(kind string) room {
	switch kind {
	case "reuse":
		return &decider{returns: schedule.NewReturns(), next: map[string]string{}}
	case "dispatch":
		return &queue{}
	case "kv":
		return newStore()
	}
	return nil
}
