package dispatch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"grebe/dispatch/loading"
	"grebe/engine"
	"grebe/internal/scripttest"
)

// A dispatcher over engines that take a millisecond per batch and one per token. Time is simulated.
//
//	open engines=2 slo=1s queue=9 warm=yes    warm: enough batches were measured for predictions to count
//	ask r1 tokens=20 within=50ms              a request that waits for its answer; one of 13 tokens panics
//	ask r1 tokens=40 reads=10ms,10ms pace=1ms blocks that are read from disk, and the expected time per token;
//	                                          a read of 0 hangs
//	ask r1 tokens=40 needs=u:30               30 of the tokens are a segment that requests share by name; also fails=yes
//	admit r1 size=3 within=50ms               only asks for a place, and leaves it
//	leave r1                                  its client goes away
//	wait 30ms                                 prints the requests that are answered meanwhile, and when
//	slo 2s; backlog; close
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scenario{T: t, paces: map[string]*loading.Pace{}}
				scripttest.File(t, name, s.run)
				s.close()
			})
		})
	}
}

type scenario struct {
	*testing.T
	d      *Dispatcher
	start  time.Time
	leaves map[string]context.CancelFunc
	paces  map[string]*loading.Pace
	loads  []*loading.Loading // reads that do not hang
	needs  *needs

	asking   sync.WaitGroup
	mu       sync.Mutex
	answered []answered
	batches  atomic.Int64
}

type answered struct {
	at   time.Duration
	what string
}

// scripted is an engine with a disk. It panics at jobs of 13 tokens and counts the batches of its scenario.
type scripted struct {
	clockworkDisk
	of *scenario
}

func (e *scripted) Run(jobs []*engine.Job, out []engine.Outcome) {
	for _, j := range jobs {
		if j.Plan.Tokens() == 13 {
			panic("thirteen")
		}
	}
	e.of.batches.Add(1)
	if !e.of.needs.run(jobs, out) {
		e.clockworkDisk.Run(jobs, out)
	}
}

func (s *scenario) run(c *scripttest.Command, out *strings.Builder) {
	switch c.Name {
	case "open":
		s.close()
		s.needs = newNeeds()
		var engines []Engine
		for range c.Int("engines", 1) {
			engines = append(engines, &scripted{of: s})
		}
		s.d = open(s.T, Options{SLO: c.Duration("slo"), Queue: c.Int("queue", 0)}, engines...)
		if c.Has("warm") {
			for range 20 {
				if _, err := s.d.Do(s.Context(), job(5)); err != nil {
					c.Fatal(err)
				}
			}
		}
		s.start, s.leaves = time.Now(), map[string]context.CancelFunc{}
		s.batches.Store(0)
	case "ask":
		s.ask(c)
		synctest.Wait()
		s.print(out)
	case "admit":
		p, err := s.d.Admit(Single, c.Int("size", 1), time.Now().Add(c.Duration("within")))
		if err == nil {
			p.Leave()
		}
		fmt.Fprintf(out, "%s %s\n", c.Word(0), outcome(err))
	case "leave":
		s.leaves[c.Word(0)]()
		synctest.Wait()
		s.print(out)
	case "wait":
		time.Sleep(c.WordDuration(0))
		synctest.Wait()
		s.print(out)
	case "slo":
		s.d.SetSLO(c.WordDuration(0))
	case "backlog":
		ms, n := s.d.Backlog()
		fmt.Fprintf(out, "%.0f ms of %d requests, %d batches so far\n", max(ms, 0), n, s.batches.Load())
	case "close":
		s.close()
		s.print(out)
	default:
		c.Fatal("no such command")
	}
}

// ask sends a request on a goroutine of its own.
func (s *scenario) ask(c *scripttest.Command) {
	name, j := c.Word(0), job(c.Int("tokens", 1))
	if c.Has("reads") {
		pace := s.paces[c.Text("pace", "")]
		if pace == nil {
			pace = known(c.Duration("pace"))
			s.paces[c.Text("pace", "")] = pace
			s.start = s.start.Add(c.Duration("pace")) // making the pace took that long
		}
		var reads []time.Duration
		for _, r := range c.List("reads") {
			d, err := time.ParseDuration(r)
			if err != nil {
				c.Fatal(err)
			}
			reads = append(reads, d)
		}
		j = blended(s.T, c.Int("tokens", 1), pace, reads...)
		if !slices.Contains(reads, 0) {
			s.loads = append(s.loads, j.Blend.Load.(*loading.Loading))
		}
	}
	if c.Has("needs") {
		j = s.needs.job(c)
	}
	ctx, cancel := context.WithCancel(s.Context())
	if c.Has("within") {
		ctx, cancel = context.WithTimeout(s.Context(), c.Duration("within"))
	}
	s.leaves[name] = cancel
	s.asking.Go(func() {
		defer cancel()
		_, err := s.d.Do(ctx, j)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answered = append(s.answered, answered{time.Since(s.start), name + " " + outcome(err)})
	})
}

// print prints the requests answered since the last call.
func (s *scenario) print(out *strings.Builder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.answered, func(a, b answered) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return strings.Compare(a.what, b.what)
	})
	for _, a := range s.answered {
		fmt.Fprintf(out, "%v: %s\n", a.at.Round(time.Microsecond), a.what)
	}
	s.answered = nil
}

// close closes the dispatcher, if there is one, and waits for all callers.
func (s *scenario) close() {
	if s.d != nil {
		if err := s.d.Close(); err != nil {
			s.Error(err)
		}
		s.asking.Wait()
		for _, l := range s.loads {
			_ = l.Wait(s.Context())
		}
		s.d, s.loads = nil, nil
	}
}

func outcome(err error) string {
	for _, known := range []struct {
		err  error
		what string
	}{{nil, "answered"}, {ErrShed, "shed"}, {ErrQueueFull, "refused: the queue is full"},
		{ErrPanicked, "failed: its batch panicked"},
		{context.Canceled, "left"}, {context.DeadlineExceeded, "too late"}, {engine.ErrTooLarge, "too large"}} {
		if errors.Is(err, known.err) {
			return known.what
		}
	}
	return err.Error()
}
