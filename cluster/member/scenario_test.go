package member

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"grebe/internal/scripttest"
)

// A set, and nodes that answer its probes at once. Time begins at 0.
//
//	set gone=3s fails=2 every=1s             a new set
//	put n1 boot=b1 draining=yes              the coordinator has a record
//	remove n1                                and no more
//	listing n1:b1 n2:b1                      all records that it has
//	away                                     the coordinator does not answer
//	drained n1 n2                            the operator's flags
//	dies n1; lives n1 boot=b2; hangs n1      answers no probes; answers them as b2;
//	                                         gives no result, so that its probe times out
//	wait 5s                                  runs every Tick that Next asks for, and prints changes and how many
//	                                         probes there were
//	show
func TestScenarios(t *testing.T) {
	scripttest.Files(t, "testdata/*.txt", (*scenario).run)
}

type scenario struct {
	s       *Set
	now     time.Duration
	answers map[string]string // by id: the boot id that answers; empty: none; "hangs": no result
}

func at(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }

func record(id, boot string) Record {
	return Record{ID: id, Boot: boot, API: id + ":80", Peer: id + ":81", Protocol: Protocol{1, 1},
		Roles: []string{Node, Router}}
}

func (s *scenario) run(c *scripttest.Command, out *strings.Builder) {
	now := at(s.now)
	switch c.Name {
	case "set":
		o := Options{Gone: c.Duration("gone"), Fails: c.Int("fails", 0), Every: c.Duration("every")}
		*s = scenario{answers: map[string]string{}, s: New(o)}
	case "put":
		r := record(c.Word(0), c.Text("boot", "b1"))
		r.Draining = c.Has("draining")
		s.lives(r.ID, r.Boot)
		s.print(out, s.s.Put(now, r))
	case "remove":
		s.print(out, s.s.Remove(now, c.Word(0)))
	case "listing":
		var records []Record
		for _, w := range c.Words {
			id, boot, _ := strings.Cut(w, ":")
			records = append(records, record(id, boot))
			s.lives(id, boot)
		}
		s.print(out, s.s.Listing(now, records))
	case "away":
		s.s.Away()
	case "drained":
		s.s.Drained(c.Words)
	case "dies":
		s.answers[c.Word(0)] = ""
	case "hangs":
		s.answers[c.Word(0)] = "hangs"
	case "lives":
		s.answers[c.Word(0)] = c.Text("boot", "b1")
	case "wait":
		s.wait(out, s.now+c.WordDuration(0))
	case "show":
		up := "up"
		if !s.s.Up() {
			up = "away"
		}
		fmt.Fprintf(out, "%v: coordinator %s\n", s.now, up)
		for _, m := range s.s.Members() {
			fmt.Fprintf(out, "  %s/%s %v usable=%v\n", m.ID, m.Boot, m.State, m.Usable())
		}
	default:
		c.Fatal("no such command")
	}
}

// lives gives a node that was never mentioned an answer.
func (s *scenario) lives(id, boot string) {
	if _, ok := s.answers[id]; !ok {
		s.answers[id] = boot
	}
}

func (s *scenario) wait(out *strings.Builder, end time.Duration) {
	answered, failed := 0, 0
	for {
		next := s.s.Next()
		if next.IsZero() || next.After(at(end)) {
			break
		}
		s.now = max(s.now, next.Sub(at(0)))
		probes, changes := s.s.Tick(at(s.now))
		s.print(out, changes)
		for _, p := range probes {
			answer := s.answers[p.ID]
			if answer == "hangs" {
				continue
			}
			if answer == p.Boot {
				answered++
			} else {
				failed++
			}
			s.print(out, s.s.Probed(at(s.now), p, answer))
		}
	}
	s.now = end
	if answered+failed > 0 {
		fmt.Fprintf(out, "%v: %d probes were answered, %d were not\n", s.now, answered, failed)
	}
}

func (s *scenario) print(out *strings.Builder, changes []Change) {
	for _, c := range changes {
		fmt.Fprintf(out, "%v: %s/%s %v -> %v\n", s.now, c.ID, c.Boot, c.From, c.To)
	}
}
