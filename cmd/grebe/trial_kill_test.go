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

// Nodes are killed at random moments under load. Requests enter at a node that lives: none fails, and no answer is
// wrong.
func TestTrialKill(t *testing.T) {
	c := newTrial(t, 3)
	pool := questions(t, long(500, 40), 3)
	c.killed(long(100, 2), long(2*time.Second, time.Second), c.half(pool), pool, c.nodes, c.nodes)
}

// killed kills a random one of the victims at a random moment under load, again and again. Each starts again after a
// time. Requests enter at those of the entries that live: none may fail, and no answer may be wrong.
func (c *trial) killed(kills int, down, every time.Duration, pool []*question, victims, entries []*member) {
	c.Helper()
	r := rand.New(rand.NewPCG(11, uint64(time.Now().UnixNano())))
	asked := 0
	for k := range kills {
		victim := victims[r.IntN(len(victims))]
		alive := slices.DeleteFunc(slices.Clone(entries), func(m *member) bool { return m == victim })
		load := startTraffic(c.T, every, pool, anyOf(alive...), nil)
		time.Sleep(200*time.Millisecond + time.Duration(r.IntN(800))*time.Millisecond)
		c.end(victim, syscall.SIGKILL)
		time.Sleep(down)
		c.launch(victim)
		c.settled(time.Minute, c.nodes...)
		time.Sleep(200 * time.Millisecond) // the new process is used
		asked += len(load.stop())
		c.running()
		if c.Failed() {
			c.Fatalf("kill %d, of %s", k+1, victim.id)
		}
	}
	c.Logf("%d kills, %d requests: none failed, no answer was wrong", kills, asked)
}

// After a kill the tail of the answers' times comes back. The device computes nothing, so that the time is the
// cluster's own. Each kill is compared with the seconds before it. Other work on the machine makes single seconds slow,
// so the median over several kills counts.
func TestTrialTailAfterKill(t *testing.T) {
	if !trialFull() {
		t.Skip("measures time: GREBE_TRIAL=full, or `make cluster-test`")
	}
	c := newTrial(t, 3, "device=none")
	c.tailAfterKill(questions(t, 200, 4, "device=none"), c.nodes[2], c.nodes[:2]...)
}

// tailAfterKill kills a node again and again, and compares the times of answers before and after.
func (c *trial) tailAfterKill(pool []*question, victim *member, entries ...*member) {
	c.Helper()
	const kills, before, after, within = 9, 8, 9, 5
	every := c.half(pool)
	var ratios [after][]float64 // by second after the kill
	var usual []float64         // by second before it: how much single seconds differ without a kill
	for k := range kills {
		load := startTraffic(c.T, every, pool, anyOf(entries...), nil)
		time.Sleep((before + 1) * time.Second)
		killed := time.Now()
		c.end(victim, syscall.SIGKILL)
		time.Sleep((after + 1) * time.Second)
		list := load.stop()
		var calm []time.Duration
		for s := -before; s < 0; s++ {
			calm = append(calm, window(list, killed, s))
		}
		base := ms(median(calm))
		for _, p := range calm {
			usual = append(usual, ms(p)/base)
		}
		text := ""
		for s := range after {
			r := ms(window(list, killed, s)) / base
			ratios[s] = append(ratios[s], r)
			text += fmt.Sprintf(" %.2f", r)
		}
		c.Logf("kill %d: %d requests, P99 %.1f ms before; × that in the seconds after it:%s", k+1, len(list), base, text)
		c.launch(victim)
		c.settled(time.Minute, c.nodes...)
	}
	slices.Sort(usual)
	c.Logf("without a kill, one second in ten is above %.2f ×", usual[len(usual)*9/10])
	for s := range ratios {
		slices.Sort(ratios[s])
		r := ratios[s][kills/2]
		c.Logf("second %d after a kill: median %.2f ×", s, r)
		if s >= within && r > 1.5 {
			c.Errorf("P99 is %.2f × the usual in second %d after a kill, want at most 1.5 × from second %d on", r, s, within)
		}
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
