package schedule

import (
	"fmt"
	"time"

	"grebe/internal/scripttest"
)

// admitting is the state of scenarios of admission. Deadlines are points on the clock of steps.
//
//	admission engines=2                for the queue that batcher made; all engines are idle
//	now 5ms                            the time of the next commands
//	admit r1 size=3 deadline=50ms      prints whether a request is admitted, and how long it takes; also rounds=yes
//	enter r1 takes=20ms deadline=50ms  prints whether its next job is admitted
//	leave r1                           its answer is sent, and every job was computed; failed=yes: one was not
//	begin 1 takes=20ms                 engine 1 begins a batch
//	ended 1
//	measured took=30ms predicted=20ms  learns from a batch; also n, to repeat it
//	woke 3ms                           a caller continued so long after its batch; also n
//	slack                              prints the margins, and passes them to the queue
//	tries takes=30ms deadline=50ms     prints whether an idle engine computes a job that was shed
//	node deadline=50ms own=10ms        prints the node's state, and what a router predicts from it alone
type admitting struct {
	admission *Admission
	places    map[string]*Place
	batches   map[int]float64
}

// admit runs a command of admission, and reports whether it is one.
func (s *scenario) admit(c *scripttest.Command) bool {
	ms := func(key string) float64 { return float64(c.Duration(key)) / float64(time.Millisecond) }
	deadline := c.Duration("deadline")
	engine := func() (n int) {
		if _, err := fmt.Sscan(c.Word(0), &n); err != nil {
			c.Fatal(err)
		}
		return n
	}
	switch c.Name {
	case "admission":
		s.admission = NewAdmission(s.queue, c.Int("engines", 1))
		s.places, s.batches = map[string]*Place{}, map[int]float64{}
	case "now":
		s.now = c.WordDuration(0)
	case "admit":
		kind := Single
		if c.Has("rounds") {
			kind = Rounds
		}
		p, price := s.admission.Admit(kind, c.Int("size", 1), s.now, deadline)
		s.places[c.Word(0)] = &p
		s.verdict(c.Word(0), &price)
	case "enter":
		if price, decided := s.admission.Enter(s.places[c.Word(0)], ms("takes"), s.now, deadline); decided {
			s.verdict(c.Word(0), &price)
		}
		s.places[c.Word(0)].Done(true)
	case "leave":
		p := s.places[c.Word(0)]
		if c.Has("failed") {
			p.Done(false)
		}
		if delay := s.admission.Leave(p, s.now); delay > 0 {
			fmt.Fprintf(&s.out, "%s took %v times as long as predicted\n", c.Word(0), short(delay))
		}
	case "begin":
		s.batches[engine()] = ms("takes")
		s.admission.Begin(engine(), ms("takes"), s.now)
	case "ended":
		s.admission.Ended(engine(), s.batches[engine()])
	case "measured":
		for range c.Int("n", 1) {
			s.admission.Measured(ms("took"), ms("predicted"))
		}
	case "woke":
		for range c.Int("n", 1) {
			s.admission.Woke(float64(c.WordDuration(0)) / float64(time.Millisecond))
		}
	case "slack":
		margin, answer := s.admission.Slack()
		s.queue.SetSlack(margin, answer)
		fmt.Fprintf(&s.out, "margin %v, %v for answers\n", short(margin), answer)
	case "tries":
		fmt.Fprintf(&s.out, "tries %v\n", s.admission.Tries(ms("takes"), s.now, deadline))
	case "node":
		n := s.admission.Node(deadline)
		takes, late := n.InTime(ms("own"), s.now, deadline)
		fmt.Fprintf(&s.out, "ends %v, %v ahead, %vms promised, idle %v, times %v: %v, late by %v\n",
			n.Ends, n.Ahead.Round(time.Microsecond), short(n.Promised), n.Idle, short(n.Factor), takes.Round(time.Microsecond),
			max(0, late).Round(time.Microsecond))
	default:
		return false
	}
	return true
}

// verdict prints the decision about a request.
func (s *scenario) verdict(name string, p *Price) {
	if p.Late > 0 {
		fmt.Fprintf(&s.out, "%s refused: late by %v\n", name, p.Late.Round(time.Microsecond))
		return
	}
	fmt.Fprintf(&s.out, "%s let in: %v\n", name, p.Takes.Round(time.Microsecond))
}
