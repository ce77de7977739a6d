package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"
)

// half returns the time between two requests at half of what the cluster answers.
func (c *trial) half(pool []*question) time.Duration {
	c.Helper()
	n := long(600, 60)
	r, began := rand.New(rand.NewPCG(5, 5)), time.Now()
	entries := make([]string, n)
	for i := range entries {
		entries[i] = anyOf(c.nodes...)(r)
	}
	parallel(8, n, func(i int) {
		if _, err := pool[i%len(pool)].ask(entries[i]); err != nil {
			c.Error(err)
		}
	})
	each := time.Since(began) / time.Duration(n)
	c.Logf("the cluster answers %.0f requests/s; the load is half of that", 1/each.Seconds())
	return 2 * each
}

// Nodes are killed at random moments under load. Requests enter at a node that lives: none fails, and no answer is wrong.
func TestTrialKill(t *testing.T) {
	c := newTrial(t, 3)
	pool := questions(t, long(500, 40), 3)
	every := c.half(pool)
	r := rand.New(rand.NewPCG(11, uint64(time.Now().UnixNano())))
	kills, asked := long(100, 2), 0
	for k := range kills {
		victim := c.nodes[r.IntN(3)]
		var alive []*member
		for _, m := range c.nodes {
			if m != victim {
				alive = append(alive, m)
			}
		}
		load := startTraffic(t, every, pool, anyOf(alive...), nil)
		time.Sleep(200*time.Millisecond + time.Duration(r.IntN(800))*time.Millisecond)
		c.end(victim, syscall.SIGKILL)
		time.Sleep(long(2*time.Second, time.Second))
		c.launch(victim)
		c.settled(30*time.Second, c.nodes...)
		time.Sleep(200 * time.Millisecond) // the new process is used
		list := load.stop()
		asked += len(list)
		c.running()
		if t.Failed() {
			t.Fatalf("kill %d, of %s", k+1, victim.id)
		}
	}
	t.Logf("%d kills, %d requests: none failed, no answer was wrong", kills, asked)
}

// After a kill the tail of the answers' times comes back. The device computes nothing, so that the time is the cluster's own.
func TestTrialTailAfterKill(t *testing.T) {
	if !trialFull() {
		t.Skip("measures time: GREBE_TRIAL=full, or `make cluster-test`")
	}
	c := newTrial(t, 3, "device=none")
	pool := questions(t, 200, 4, "device=none")
	every := c.half(pool)
	load := startTraffic(t, every, pool, anyOf(c.nodes[:2]...), nil)
	time.Sleep(10 * time.Second)
	killed := time.Now()
	c.end(c.nodes[2], syscall.SIGKILL)
	time.Sleep(10 * time.Second)
	list := load.stop()
	var before []time.Duration
	for s := -9; s < 0; s++ {
		before = append(before, window(list, killed, s))
	}
	usual := median(before)
	text := ""
	back := -1
	for s := range 9 {
		p := window(list, killed, s)
		text += fmt.Sprintf(" %.1f", ms(p))
		if p > usual*3/2 {
			back = -1
		} else if back < 0 {
			back = s
		}
	}
	t.Logf("%d requests, one each %v; P99 of 1 s windows before the kill %v, after it%s ms", len(list), every, before, text)
	if back < 0 || back > 5 {
		t.Errorf("P99 is not back at 1.5 times the usual within 5 s")
	}
}

// window returns the P99 of the second s after a moment.
func window(list []sample, at time.Time, s int) time.Duration {
	from := at.Add(time.Duration(s) * time.Second)
	return quantile(between(list, from, from.Add(time.Second)), .99)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func median(list []time.Duration) time.Duration {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}
