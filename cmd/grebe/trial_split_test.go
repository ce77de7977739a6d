package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// ack is an acknowledged write.
type ack struct {
	id, text string
	sent, at time.Time
}

// writer puts items of its own at one node, one after the other, and remembers which were acknowledged.
type writer struct {
	at      *member
	cancel  context.CancelFunc
	run     sync.WaitGroup
	acks    []ack
	refused int
}

func startWriter(t *testing.T, m *member) *writer {
	w := &writer{at: m}
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(context.Background())
	t.Cleanup(w.stop)
	w.run.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			a := ack{id: fmt.Sprintf("%s-%d", m.id, i), text: fmt.Sprintf("Write %d at %s.", i, m.id), sent: time.Now()}
			status, _, err := m.send(http.MethodPut, "/v1/items/"+a.id, fmt.Sprintf(`{"id":%q,"text":%q}`, a.id, a.text))
			if err == nil && status/100 == 2 {
				a.at = time.Now()
				w.acks = append(w.acks, a)
			} else {
				w.refused++
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return w
}

func (w *writer) stop() {
	w.cancel()
	w.run.Wait()
}

// between returns how many writes were sent and acknowledged in [from, to).
func (w *writer) between(from, to time.Time) (n int) {
	for _, a := range w.acks {
		if !a.sent.Before(from) && a.at.Before(to) {
			n++
		}
	}
	return n
}

// Two nodes are cut off from each other, and one from the coordinator, while both are written to. At most one side
// acknowledges writes. When the network is back both have all that was acknowledged, without a restart.
func TestTrialSplitWrites(t *testing.T) {
	c, links := separable(t)
	c.startAll()
	boots := c.boots()
	rounds := long(5, 1)
	var writers []*writer
	for _, m := range c.nodes {
		writers = append(writers, startWriter(t, m))
	}
	type phase struct{ began, fell, back time.Time }
	var phases []phase
	var together, writes time.Duration
	for range rounds {
		p := phase{began: time.Now()}
		time.Sleep(time.Second)
		p.fell = time.Now()
		for _, l := range links {
			l.cut()
		}
		time.Sleep(long(25*time.Second, 4*time.Second)) // a member that is away is gone after 13 s
		p.back = time.Now()
		for _, l := range links {
			l.mend()
		}
		together = max(together, c.settled(30*time.Second, c.nodes...))
		c.until(30*time.Second, func() string {
			for _, m := range c.nodes {
				body := fmt.Sprintf(`{"id":"after","text":"%d at %s"}`, len(phases), m.id)
				if status, answer, err := m.send(http.MethodPut, "/v1/items/after", body); err != nil || status/100 != 2 {
					return fmt.Sprintf("%s takes no writes: %d %s %v", m.id, status, answer, err)
				}
			}
			return ""
		})
		writes = max(writes, time.Since(p.back))
		phases = append(phases, p)
	}
	for _, w := range writers {
		w.stop()
	}
	all := map[string]string{}
	refused := 0
	for _, w := range writers {
		for _, a := range w.acks {
			all[a.id] = a.text
		}
		refused += w.refused
	}
	var apart [2]int
	for k, p := range phases {
		var now [2]int
		for i, w := range writers {
			if now[i] = w.between(p.fell, p.back); w.between(p.began, p.fell) == 0 {
				t.Errorf("%s acknowledged nothing before cut %d", w.at.id, k+1)
			}
			apart[i] += now[i]
		}
		if now[0] > 0 && now[1] > 0 {
			t.Errorf("both sides acknowledged writes while they were apart: %v", now)
		}
	}
	c.running()
	for id, boot := range c.boots() {
		if boots[id] != boot {
			t.Errorf("%s restarted", id)
		}
	}
	x := c.agreed(30 * time.Second)
	c.has(all)
	t.Logf("%d times apart: %d writes acknowledged, none lost, %d refused; apart %v of the two sides; together after at "+
		"most %.2f s, "+
		"writes at both after %.2f s; both have %+v", rounds, len(all), refused, apart, together.Seconds(), writes.Seconds(),
		x)
}
