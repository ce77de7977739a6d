package dispatch

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"grebe/engine"
	"grebe/internal/scripttest"
	"grebe/plan"
)

// needs are segments that requests of a scenario share, and which of them were computed. The real thing is tested in
// package serve.
type needs struct {
	mu    sync.Mutex
	named map[string]*engine.Underway
	known map[*engine.Underway]bool
	fails map[*engine.Job]bool
}

func newNeeds() *needs {
	return &needs{named: map[string]*engine.Underway{}, known: map[*engine.Underway]bool{}, fails: map[*engine.Job]bool{}}
}

// job makes a job of a shared segment and one of its own.
func (n *needs) job(c *scripttest.Command) *engine.Job {
	name, count, _ := strings.Cut(c.Text("needs", ""), ":")
	tokens, err := strconv.Atoi(count)
	if err != nil {
		c.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.named[name] == nil {
		n.named[name] = &engine.Underway{}
	}
	j := job(tokens)
	own := make([]int32, c.Int("tokens", 1)-tokens)
	j.Plan.Segments = append(j.Plan.Segments, plan.Segment{Kind: plan.Item, Tokens: own, Sees: []int32{0}})
	j.Segments = []engine.Segment{{Keep: true, Underway: n.named[name]}, {}}
	n.fails[j] = c.Has("fails")
	return j
}

var errScripted = errors.New("failed")

// run computes jobs that share segments: a millisecond for the batch, and one per token that is not known. It reports
// whether there are any.
func (n *needs) run(jobs []*engine.Job, out []engine.Outcome) bool {
	rows, computes := 1, map[*engine.Underway]bool{}
	n.mu.Lock()
	for i, j := range jobs {
		rows += j.Plan.Tokens()
		if j.Segments == nil {
			continue
		}
		u, shared := j.Segments[0].Underway, len(j.Plan.Segments[0].Tokens)
		if n.known[u] || computes[u] {
			rows -= shared
			out[i].Shared.Concurrent, out[i].Shared.Cost.Rows = shared, shared
		}
		computes[u] = true
		if n.fails[j] {
			out[i].Err = errScripted
		}
	}
	n.mu.Unlock()
	if len(computes) == 0 {
		return false
	}
	time.Sleep(time.Duration(rows) * time.Millisecond)
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, j := range jobs {
		if j.Segments != nil && out[i].Err == nil {
			n.known[j.Segments[0].Underway] = true
		}
	}
	return true
}
