package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// A request that is forwarded takes little longer than one that is answered where it entered. Nodes take turns, so both
// kinds are measured at the same time.
func TestTrialForwarding(t *testing.T) {
	if !trialFull() {
		t.Skip("measures time: GREBE_TRIAL=full, or `make cluster-test`")
	}
	c := newTrial(t, 2, "device=none", "cluster.routing=round-robin")
	pool := questions(t, 20, 14, "device=none")
	by := map[string][]sample{}
	const n = 6000
	for i := range n {
		q := pool[i/2%len(pool)] // each is asked twice in a row, once of each node
		began := time.Now()
		a, err := q.ask(c.nodes[0].listen)
		if err != nil {
			t.Fatal(err)
		}
		if i >= n/4 {
			by[a.Node] = append(by[a.Node], sample{took: time.Since(began)})
		}
	}
	here, there := quantile(by["n1"], .5), quantile(by["n2"], .5)
	t.Logf("%d requests here, P50 %.3f ms, P99 %.3f ms; %d forwarded, P50 %.3f ms, P99 %.3f ms; forwarding adds %.3f ms",
		len(by["n1"]), ms(here), ms(quantile(by["n1"], .99)), len(by["n2"]), ms(there), ms(quantile(by["n2"], .99)),
		ms(there-here))
	if len(by["n1"]) < n/4 || len(by["n2"]) < n/4 {
		t.Error("the nodes do not take turns")
	}
	if there-here > 300*time.Microsecond {
		t.Errorf("forwarding adds %v to the median, want at most 0.3 ms", there-here)
	}
}

// An idle cluster takes little of a core.
func TestTrialIdle(t *testing.T) {
	if !trialFull() {
		t.Skip("takes a minute: GREBE_TRIAL=full, or `make cluster-test`")
	}
	c := newTrial(t, 3)
	time.Sleep(5 * time.Second)
	const lasts = 30 * time.Second
	before := c.busy()
	time.Sleep(lasts)
	part := float64(c.busy()-before) / float64(lasts)
	t.Logf("three idle nodes take %.2f %% of a core", 100*part)
	if part > .02 {
		t.Errorf("an idle cluster takes %.2f %% of a core, want at most 2 %%", 100*part)
	}
}

// busy returns the time that the nodes' processes have run.
func (c *trial) busy() (total time.Duration) {
	c.Helper()
	for _, m := range c.nodes {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.cmd.Process.Pid))
		if err != nil {
			c.Fatal(err)
		}
		fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		for _, f := range fields[11:13] { // user and system time, in hundredths of a second
			n, err := strconv.Atoi(string(f))
			if err != nil {
				c.Fatal(err)
			}
			total += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return total
}
