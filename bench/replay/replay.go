// Package replay gives the inputs that a server recorded to the pure rooms, in their order and with their times, and
// compares what they decide with what was decided. So code that decides can be moved or rewritten and shown to
// decide the same.
//
// Record with a binary from before a change and replay with one from after it:
//
//	git worktree add ../before COMMIT && (cd ../before && make build)
//	make replay OLD=../before/bin/grebe
//
// That is `grebe-bench replay --record`: it runs the old binary in several ways (bench/drive), some seven thousand
// requests each, and replays the logs. Any server makes such a log with `record: FILE` in its configuration.
// testdata has a short one of each kind, which tests replay. They are of commit 8a2d565, the last one whose kv decided
// what is held where; in that of reloads, questions about items that were never held are left out.
//
// A log has the decisions that rooms take while they hold their lock, and what they were told. What it does not have:
//   - Removals when a store is closed have no input. The replay takes them as they come, at the end of a store.
//   - Policies of before a search for LRU's victim had an end ask twice of an entry that leaves. The second question,
//     if its answer is the same, is left out.
//   - Logs of before package residency tell less: see before.go.
//   - Logs of before records had a lock mix the lines of requests that choose an order at the same time. A choice then
//     has to be that of one of the requests that wait for theirs.
package replay

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"grebe/internal/record"
	"grebe/plan"
	"grebe/schedule"
)

// Report says how a replay went.
type Report struct {
	Requests    int            // that the server was asked, where the log says it
	Inputs      int            // that were given to rooms
	Decisions   map[string]int // that were compared, by room and operation, such as "reuse order"
	Differences []string       // the first ones
	Different   int            // how many there are
}

// Compared returns how many decisions were compared.
func (r *Report) Compared() (n int) {
	for _, k := range r.Decisions {
		n += k
	}
	return n
}

// AddTo adds what was compared to counts of other logs, nil for none yet.
func (r *Report) AddTo(counts map[string]int) map[string]int {
	if counts == nil {
		counts = map[string]int{}
	}
	for op, n := range r.Decisions {
		counts[op] += n
	}
	return counts
}

// room replays the lines of one room.
type room interface {
	// in takes an input. Then are the decisions that the log has behind it: for what an input does not tell.
	in(l *record.Line, then []*record.Line)
	// did returns a decision as the log has it and as the room decides it; "" and "" when it has no opinion on that
	// kind of line.
	did(l *record.Line) (was, now string)
	// rest returns what the room decided and no line told.
	rest() []string
}

// group is an input of a room, and the decisions behind it.
type group struct {
	in   *record.Line // nil: the log begins with decisions
	dids []*record.Line
}

// after says what the decisions followed.
func (g *group) after() string {
	if g.in == nil {
		return ""
	}
	in := g.in.String()
	if len(in) > 200 {
		in = in[:200] + "…"
	}
	return fmt.Sprintf(", after line %d: %s", g.in.Number, in)
}

// kept bounds the differences that are told.
const kept = 20

// Run replays a log. An error says why it cannot be read; differences are in the report.
func Run(r io.Reader) (*Report, error) {
	p := &player{report: &Report{Decisions: map[string]int{}}}
	log := -1
	for l, err := range record.Read(r) {
		if err != nil {
			return p.report, err
		}
		if l.Log != log { // a server that was started again begins anew
			if err := p.end(); err != nil {
				return p.report, err
			}
			log, p.rooms, p.open = l.Log, map[string]room{}, map[string]*group{}
		}
		g := p.open[l.Room]
		switch {
		case l.Did && g != nil:
			g.dids = append(g.dids, l)
		case l.Did:
			p.open[l.Room] = &group{dids: []*record.Line{l}}
		default:
			if err := p.play(l.Room, g); err != nil {
				return p.report, err
			}
			p.open[l.Room] = &group{in: l}
		}
	}
	if err := p.end(); err != nil {
		return p.report, err
	}
	if len(p.report.Decisions) == 0 {
		return p.report, errors.New("replay: the log has no decision that can be replayed")
	}
	return p.report, nil
}

// player replays the rooms of a log.
type player struct {
	report *Report
	rooms  map[string]room
	open   map[string]*group // the last of each room: more decisions may follow
}

// play gives an input to its room and compares the decisions.
func (p *player) play(name string, g *group) error {
	kind := strings.TrimRight(name, "0123456789")
	to := p.rooms[name]
	if g == nil {
		return nil
	}
	if to == nil {
		if to = newRoom(kind); to == nil {
			return nil
		}
		p.rooms[name] = to
	}
	if l := g.in; l != nil {
		p.left(name, fmt.Sprintf("line %d: before it", l.Number))
		p.report.Inputs++
		if to.in(l, g.dids); l.Values.Failed() != nil {
			return fmt.Errorf("line %d: %w: %s", l.Number, l.Values.Failed(), l)
		}
	}
	for _, l := range g.dids {
		was, now := to.did(l)
		if was == "" {
			continue
		}
		op, _, _ := strings.Cut(was, " ")
		p.report.Decisions[kind+" "+op]++
		if was != now {
			p.report.differ("line %d: %s decided %q when it was recorded, this code decides %q%s",
				l.Number, name, was, now, g.after())
		}
	}
	return nil
}

// end replays what is open.
func (p *player) end() error {
	for _, name := range slices.Sorted(maps.Keys(p.open)) {
		if err := p.play(name, p.open[name]); err != nil {
			return err
		}
		p.left(name, "at the end of the log")
	}
	return nil
}

// left tells what a room decided that the log does not have.
func (p *player) left(name, when string) {
	if to := p.rooms[name]; to != nil {
		for _, now := range to.rest() {
			p.report.differ("%s: %s decided nothing more when it was recorded, this code decides %q", when, name, now)
		}
	}
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

func newRoom(kind string) room {
	switch kind {
	case "reuse":
		return &decider{returns: schedule.NewReturns(), answers: answers{}}
	case "dispatch":
		return &queue{answers: answers{}}
	case "load":
		return &load{answers{}}
	case "pace":
		return &pace{answers: answers{}}
	case "below":
		return &below{answers{}}
	case "kv":
		return newStore()
	case "meta":
		return &index{hotness: hotness{users: map[plan.Key]bool{}}}
	}
	return nil
}
