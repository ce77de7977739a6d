package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"grebe/internal/scripttest"
)

// All times are on one clock that begins at 0. A request arrives at the time of the last step unless it says otherwise.
//
//	model fixed=2ms row=10us           milliseconds of a batch; also square, key, request
//	batcher slo=200ms capacity=8       a new, empty queue; also maxrows, margin, efficiency
//	add r1 rows=900 deadline=50ms      also keys, at
//	remove r1
//	step 5ms                           decides at 5 ms
//	await r1 rows=80 ends=30ms         decides whether a job of the last step waits for a batch until then;
//	                                   also keys, since
//	resume                             a batch has ended
//	drain 5ms                          decides and runs, batch after batch, until nothing waits
//
// Commands of other decisions are described at the types pricing, admitting and computing.
func TestScenarios(t *testing.T) {
	scripttest.Files(t, "testdata/*.txt", (*scenario).run)
}

type scenario struct {
	model PrefillModel
	queue *Batcher
	names map[uint64]string
	now   time.Duration
	batch []Job // of the last step
	out   strings.Builder
	pricing
	admitting
	computing
}

func (s *scenario) run(c *scripttest.Command, out *strings.Builder) {
	defer func() {
		out.WriteString(s.out.String())
		s.out.Reset()
	}()
	ms := func(key string) float64 { return float64(c.Duration(key)) / float64(time.Millisecond) }
	switch c.Name {
	case "model":
		s.model = PrefillModel{Fixed: ms("fixed"), Row: ms("row"), Key: ms("key"), Request: ms("request"),
			Square: c.Float("square", 0)}
	case "batcher":
		cfg := DefaultBatcher(c.Int("capacity", 0), c.Duration("slo"))
		cfg.MaxRows, cfg.Margin, cfg.Efficiency = c.Int("maxrows", 0), c.Float("margin", 0),
			c.Float("efficiency", cfg.Efficiency)
		q, err := NewBatcher(cfg, s.model)
		if err != nil {
			c.Fatal(err)
		}
		s.queue, s.now, s.names = q, 0, map[uint64]string{}
		fmt.Fprintf(&s.out, "target %v\n", q.Target())
	case "add":
		j := Job{ID: uint64(len(s.names)), Rows: c.Int("rows", 0), Keys: c.Int("keys", 0), Arrival: s.now,
			Deadline: c.Duration("deadline")}
		if c.Has("at") {
			j.Arrival = c.Duration("at")
		}
		s.names[j.ID] = c.Word(0)
		if !s.queue.Add(j) {
			fmt.Fprintf(&s.out, "%s refused\n", c.Word(0))
		}
	case "remove":
		for id, n := range s.names {
			if n == c.Word(0) && !s.queue.Remove(id) {
				fmt.Fprintf(&s.out, "%s does not wait\n", n)
			}
		}
	case "step":
		s.now = c.WordDuration(0)
		s.step()
	case "drain":
		s.now = c.WordDuration(0)
		for s.queue.Len() > 0 {
			s.now = s.step()
		}
	case "await":
		i := slices.IndexFunc(s.batch, func(j Job) bool { return s.names[j.ID] == c.Word(0) })
		if i < 0 {
			c.Fatal("it did not run")
		}
		since := s.now
		if c.Has("since") {
			since = c.Duration("since")
		}
		until := s.queue.Await(&s.batch[i], c.Int("rows", 0), c.Int("keys", 0), c.Duration("ends"), since, s.now)
		if until <= s.now {
			fmt.Fprintf(&s.out, "%s computes\n", c.Word(0))
			break
		}
		s.queue.Hold(s.batch[i], until)
		fmt.Fprintf(&s.out, "%s waits until %v\n", c.Word(0), until)
	case "resume":
		fmt.Fprintf(&s.out, "resumed: %v, %d in the queue\n", s.queue.Resume(), s.queue.Len())
	default:
		if !s.price(c) && !s.admit(c) && !s.computeAhead(c) {
			c.Fatal("no such command")
		}
	}
}

// step prints a decision and returns when the worker decides next.
func (s *scenario) step() time.Duration {
	batch, shed, wake := s.queue.Step(s.now)
	s.batch = batch
	fmt.Fprintf(&s.out, "%v:", s.now)
	if len(shed) > 0 {
		fmt.Fprintf(&s.out, " shed%s", s.list(shed))
	}
	var sum load
	for i := range batch {
		sum = sum.plus(&batch[i])
	}
	took := s.queue.predict(sum)
	switch {
	case len(batch) > 0:
		fmt.Fprintf(&s.out, " run%s (%d rows, %v)\n", s.list(batch), sum.rows, took.Round(time.Microsecond))
		return s.now + took
	case wake == Never:
		fmt.Fprintln(&s.out, " idle")
	default:
		fmt.Fprintf(&s.out, " wait until %v\n", wake.Round(time.Microsecond))
	}
	return wake
}

func (s *scenario) list(jobs []Job) string {
	out := ""
	for _, j := range jobs {
		out += " " + s.names[j.ID]
	}
	return out
}
