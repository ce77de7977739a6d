package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A router dies. Its clients ask the other one, and lose nothing. When it is back, it soon knows what all nodes hold.
func TestTrialRouterKilled(t *testing.T) {
	c := newTrial(t, 2)
	pool := questions(t, long(300, 40), 8)
	every := c.half(pool)
	first, second := c.nodes[0], c.nodes[1]
	c.routerKilled(long(20, 1), time.Second, every, pool, first, second, second)
}

// routerKilled kills a process at which clients enter, again and again, after a time. The clients ask another one, and
// lose nothing. Soon after it is ready again, its index is that of the nodes.
func (c *trial) routerKilled(kills int, after, every time.Duration, pool []*question, first, second *member,
	nodes ...*member) {
	c.Helper()
	load := startTraffic(c.T, every, pool, anyOf(first), anyOf(second))
	var worst time.Duration
	for range kills {
		time.Sleep(after)
		c.end(first, syscall.SIGKILL)
		time.Sleep(after / 2)
		c.launch(first)
		c.until(time.Minute, func() string {
			if _, err := fetch("GET", "http://"+first.listen+"/readyz", nil); err != nil {
				return err.Error()
			}
			return ""
		})
		worst = max(worst, c.until(time.Minute, func() string { return c.indexDiffers(first, nodes...) }))
	}
	list := load.stop()
	c.running()
	c.Logf("%d kills of a router, %d requests: none lost; the index was that of the nodes after at most %.2f s",
		kills, len(list), worst.Seconds())
	if worst > 2*time.Second && trialFull() {
		c.Errorf("the index was that of the nodes after %v, want at most 2 s", worst)
	}
}

// indexDiffers compares what a process knows of nodes' KV with what each node says of itself.
func (c *trial) indexDiffers(at *member, nodes ...*member) string {
	all := 0
	for _, of := range nodes {
		own, err := entries(of, of.id)
		if err != nil {
			return err.Error()
		}
		seen, err := entries(at, of.id)
		if err != nil {
			return err.Error()
		}
		if again, err := entries(of, of.id); err != nil || again != own {
			return "it changes" // look again
		}
		if own != seen {
			return fmt.Sprintf("%s knows %d entries of %s, which has %d", at.id, seen, of.id, own)
		}
		all += own
	}
	if all < 10 {
		return fmt.Sprintf("the nodes have %d entries", all)
	}
	return ""
}

// entries returns how many entries of KV a process knows of on a node.
func entries(at *member, id string) (int, error) {
	s, err := at.status()
	if err != nil {
		return 0, err
	}
	for _, n := range s.Nodes {
		if n.ID == id && len(n.Models) == 1 && n.Models[0].Known {
			return n.Models[0].Entries, nil
		}
	}
	return -1, fmt.Errorf("%s knows nothing of %s", at.id, id)
}

// speaking builds a binary that speaks other versions of the protocol between members.
func speaking(t *testing.T, versions string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "grebe-"+versions)
	build := exec.Command("go", "build", "-ldflags", "-s -w -X grebe/cluster/protocol.spoken="+versions, "-o", name, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build with versions %s: %v\n%s", versions, err, out)
	}
	return name
}

// speak reports which of the nodes does not speak the wanted versions, as each of them sees it.
func (c *trial) speak(want map[string]string) (problem string) {
	for _, m := range c.nodes {
		s, err := m.status()
		if err != nil {
			return err.Error()
		}
		for _, n := range s.Nodes {
			if got := fmt.Sprintf("%d-%d", n.ProtocolMin, n.ProtocolMax); got != want[n.ID] || n.Refused != "" {
				return fmt.Sprintf("%s sees %s speak %s, want %s; refused: %q", m.id, n.ID, got, want[n.ID], n.Refused)
			}
		}
	}
	return ""
}

// All nodes are restarted, one after the other, under load. Each round brings another release: old and new nodes have
// one version of the protocol in common. One client enters at nodes that are not being restarted. Another one enters
// anywhere, and asks once more elsewhere if a node is not there.
func TestTrialRollingRestart(t *testing.T) {
	if os.Getenv("GREBE_BINARY") != "" {
		t.Skip("needs a compiler")
	}
	c := newTrial(t, 3)
	releases := long([]string{"1-2", "2-3", "2-2", "1-2", "1-1"}, []string{"1-2"})
	builds, speaks := map[string]string{}, map[string]string{}
	for _, v := range releases {
		if builds[v] == "" {
			builds[v] = speaking(t, v)
		}
	}
	for _, m := range c.nodes {
		speaks[m.id] = "1-1"
	}
	pool := questions(t, long(300, 40), 9)
	every := 2 * c.half(pool)
	turns := make(chan *member, 1) // the node that is being restarted
	turns <- nil
	others := func(r *rand.Rand) string {
		m := <-turns
		turns <- m
		for {
			if x := c.nodes[r.IntN(len(c.nodes))]; x != m {
				return x.listen
			}
		}
	}
	calm := startTraffic(t, every, pool, others, nil)
	bold := startTraffic(t, every, pool, anyOf(c.nodes...), others)
	for _, v := range releases {
		for _, m := range c.nodes {
			<-turns
			turns <- m
			time.Sleep(100 * time.Millisecond)
			c.end(m, syscall.SIGTERM)
			m.binary, speaks[m.id] = builds[v], v
			c.launch(m)
			c.settled(30*time.Second, c.nodes...)
			if p := c.speak(speaks); p != "" {
				t.Error(p)
			}
			<-turns
			turns <- nil
		}
	}
	asked := len(calm.stop()) + len(bold.stop())
	c.running()
	t.Logf("%d restarts, versions %v in turn, %d requests: none failed, no answer was wrong", 3*len(releases), releases,
		asked)
	if !trialFull() {
		return
	}
	m := c.nodes[2]
	c.end(m, syscall.SIGTERM)
	m.binary = builds["2-2"]
	c.launch(m)
	select {
	case <-m.exited:
	case <-time.After(30 * time.Second):
		t.Fatal("a node that speaks version 2 alone starts beside nodes that speak version 1 alone")
	}
	if log := tail(m.log); m.cmd.ProcessState.ExitCode() == 0 || !strings.Contains(log, "upgrade one release at a time") {
		t.Errorf("it ends with %v and says\n%s", m.cmd.ProcessState, log)
	}
}
