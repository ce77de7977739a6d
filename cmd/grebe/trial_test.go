package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"grebe/cluster/status"
	"grebe/shop/demo"
)

// The tests named TestTrial… run a cluster as it is in production: processes of the built binary and an etcd in a
// process of its own, which are killed, stopped and cut off under load. Answers are compared with those of a single
// server without caches.
//
// GREBE_TRIAL=full makes them as long as the claims of docs/results/2026-11-17-cluster.md (`make cluster-test`).
// Without it they are short.

// trialFull reports whether the trial is in full.
func trialFull() bool { return os.Getenv("GREBE_TRIAL") == "full" }

// long returns what is right for the length of the trial.
func long[T any](full, short T) T {
	if trialFull() {
		return full
	}
	return short
}

// trial is a cluster.
type trial struct {
	*testing.T
	dir   string
	etcd  *etcdProcess
	at    string   // the coordinator's address; empty: etcd's
	set   []string // settings of all nodes
	nodes []*member
}

// member is a process of the cluster.
type member struct {
	id              string
	listen, admin   string
	peer, advertise string
	set             []string // settings of its own
	binary          string   // empty: the built command
	config          string   // empty: the demo's
	args, env       []string // of its command, instead of all above; nil: the demo's
	cmd             *exec.Cmd
	log             string // its file
	exited          chan struct{}
	killed          bool // by the test
}

// newTrial starts a cluster of n nodes and waits until all know each other.
func newTrial(t *testing.T, n int, settings ...string) *trial {
	t.Helper()
	c := prepareTrial(t, n, settings...)
	c.startAll()
	return c
}

// prepareTrial makes a cluster of n nodes without starting them.
func prepareTrial(t *testing.T, n int, settings ...string) *trial {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	if !trialFull() {
		t.Parallel() // they wait most of the time
	}
	c := &trial{T: t, dir: t.TempDir(), set: settings}
	c.addMembers(n)
	return c
}

// addMembers adds n nodes without starting them.
func (c *trial) addMembers(n int) {
	for i := range n {
		m := &member{id: fmt.Sprint("n", i+1), listen: freeAddress(c), admin: freeAddress(c), peer: freeAddress(c)}
		m.advertise, m.log = m.peer, filepath.Join(c.dir, m.id+".log")
		c.nodes = append(c.nodes, m)
	}
}

// nextPort counts the ports that were tried; each is given to one test only.
var (
	firstPort = rand.Int64N(12000)
	nextPort  atomic.Int64
)

// freeAddress returns an address that nobody uses and that the system does not give to outgoing connections: a node
// gets it again after a restart.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		ln, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 20000+(firstPort+nextPort.Add(1))%12000))
		if err == nil {
			defer ln.Close()
			return ln.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

func (c *trial) startAll() {
	c.Helper()
	if c.at == "" {
		if c.etcd == nil {
			c.etcd = startEtcd(c.T)
		}
		c.at = "etcd://" + c.etcd.addr
	}
	for _, m := range c.nodes {
		c.launch(m)
	}
	c.settled(time.Minute, c.nodes...)
}

// launch starts a node's process.
func (c *trial) launch(m *member) {
	c.Helper()
	args := m.args
	if args == nil {
		args = c.demoArgs(m)
	}
	m.cmd = exec.Command(cmp.Or(m.binary, binary), args...)
	m.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GREBE_") }),
		m.env...)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.Fatal(err)
	}
	defer log.Close()
	m.cmd.Stderr, m.killed, m.exited = log, false, make(chan struct{})
	if err := m.cmd.Start(); err != nil {
		c.Fatal(err)
	}
	cmd, exited := m.cmd, m.exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	c.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		if c.Failed() && cmd == m.cmd {
			c.Logf("%s logged at last:\n%s", m.id, tail(m.log))
		}
	})
}

// demoArgs are the arguments of a node with the demo's configuration and the trial's settings.
func (c *trial) demoArgs(m *member) []string {
	args := append([]string{"serve", "-c", cmp.Or(m.config, filepath.Join(demoData, demo.ConfigFile)),
		"--listen", m.listen,
		"--admin-listen", m.admin, "--grpc-listen=", "--data-dir", filepath.Join(c.dir, m.id), "--slo-ms", "30000",
		"--log-format", "json"},
		flags([]string{
			"cluster.name=trial", "cluster.node=" + m.id, "cluster.coordinator=" + c.at, "cluster.listen=" + m.peer,
			"cluster.advertise=" + m.advertise, "cache.ahead=off", "cache.host_memory=64MiB", "threads=1"})...)
	return append(args, flags(append(slices.Clone(c.set), m.set...))...)
}

// tail returns the end of a file.
func tail(name string) string {
	data, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-3000):])
}

// end sends a signal that ends a node, and waits for the end.
func (c *trial) end(m *member, how syscall.Signal) {
	c.Helper()
	m.killed = true
	_ = m.cmd.Process.Signal(how)
	select {
	case <-m.exited:
	case <-time.After(time.Minute):
		c.Fatalf("%s does not end", m.id)
	}
	if how == syscall.SIGTERM && m.cmd.ProcessState.ExitCode() != 0 {
		c.Errorf("%s ends with %v after SIGTERM", m.id, m.cmd.ProcessState)
	}
}

// running checks that no process ended that the test did not end.
func (c *trial) running() {
	c.Helper()
	for _, m := range c.nodes {
		select {
		case <-m.exited:
			if !m.killed {
				c.Errorf("%s ended by itself: %v", m.id, m.cmd.ProcessState)
			}
		default:
		}
	}
}

// status returns the cluster as a node sees it.
func (m *member) status() (*status.Cluster, error) {
	data, err := fetch(http.MethodGet, "http://"+m.admin+"/v1/cluster", nil)
	if err != nil {
		return nil, err
	}
	s := new(status.Cluster)
	return s, json.Unmarshal(data, s)
}

// fetch sends a request that has to be answered at once.
func fetch(method, url string, body io.Reader) ([]byte, error) {
	return fetchWithin(5*time.Second, method, url, body)
}

func fetchWithin(limit time.Duration, method, url string, body io.Reader) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusAccepted {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, data)
	}
	return data, err
}

// settled waits until each of the given nodes sees all of them, and no others, as members whose KV it knows.
func (c *trial) settled(within time.Duration, nodes ...*member) time.Duration {
	c.Helper()
	return c.until(within, func() string { return c.unsettled(nodes...) })
}

// unsettled reports what settled waits for.
func (c *trial) unsettled(nodes ...*member) (problem string) {
	c.Helper()
	if c.running(); c.Failed() {
		c.FailNow()
	}
	boots := map[string]string{}
	for _, m := range nodes {
		s, err := m.status()
		if err != nil {
			return m.id + ": " + err.Error()
		}
		if problem := complete(s, len(nodes), boots); problem != "" {
			return m.id + " sees " + problem
		}
	}
	return ""
}

// complete reports what is missing in a process's view of n nodes. Boots collects the nodes' processes.
func complete(s *status.Cluster, n int, boots map[string]string) (problem string) {
	if len(s.Nodes) != n || s.Coordinator != "up" {
		return fmt.Sprintf("%d of %d nodes, coordinator %s", len(s.Nodes), n, s.Coordinator)
	}
	for _, x := range s.Nodes {
		switch {
		case x.State != "ACTIVE" || x.Drained:
			return fmt.Sprintf("%s %s, drained %t", x.ID, x.State, x.Drained)
		case len(x.Models) != 1 || !x.Models[0].Known && !slices.Equal(x.Roles, []string{"router"}): // a router holds nothing
			return "KV unknown of " + x.ID
		case boots[x.ID] != "" && boots[x.ID] != x.Boot:
			return "an old process of " + x.ID
		}
		boots[x.ID] = x.Boot
	}
	return ""
}

// until waits until there is no problem, and returns how long that took.
func (c *trial) until(within time.Duration, problem func() string) time.Duration {
	c.Helper()
	start := time.Now()
	for {
		p := problem()
		took := time.Since(start)
		if p == "" {
			return took
		}
		if took > within {
			c.Fatalf("not within %v: %s", within, p)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
