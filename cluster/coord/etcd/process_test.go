package etcd

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"grebe/cluster/coord"
	"grebe/cluster/coord/coordtest"
	"grebe/cluster/coord/embedded"
)

// childEnv makes the test binary an etcd server: a folder and an address. It ends when its standard input does.
const childEnv = "GREBE_TEST_ETCD"

func TestMain(m *testing.M) {
	args, child := os.LookupEnv(childEnv)
	if !child {
		_ = flag.Set("test.parallel", "8") // they wait most of the time
		goleak.VerifyTestMain(m)
		return
	}
	dir, listen, _ := strings.Cut(args, " ")
	s, err := embedded.Start(context.Background(), embedded.Options{
		Dir: dir, Listen: listen, Election: 500 * time.Millisecond})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(s.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Close()
}

// child is an etcd server in a process of its own.
type child struct {
	t    testing.TB
	dir  string
	addr string
	cmd  *exec.Cmd
}

func startChild(t testing.TB) *child {
	c := &child{t: t, dir: coordtest.Dir(t), addr: coordtest.Address()}
	c.start()
	t.Cleanup(c.kill)
	return c
}

func (c *child) start() {
	c.t.Helper()
	c.cmd = exec.Command(os.Args[0])
	c.cmd.Env = append(os.Environ(), childEnv+"="+c.dir+" "+c.addr)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if _, err := c.cmd.StdinPipe(); err != nil { // open until the test ends
		c.t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if c.addr = strings.TrimSpace(line); err != nil || strings.HasPrefix(line, "error:") {
		c.t.Fatalf("the child says %q: %v", line, err)
	}
}

func (c *child) signal(s syscall.Signal) {
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Error(err)
	}
}

// stop returns when all threads have stopped.
func (c *child) stop() {
	c.signal(syscall.SIGSTOP)
	within(c.t, 5*time.Second, "the child stops", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// Etcd is away for longer than all leases, killed or only stopped: for 5 s, or for as long as GREBE_COORD_AWAY says.
func TestAway(t *testing.T) {
	t.Parallel()
	away, err := time.ParseDuration(cmp.Or(os.Getenv("GREBE_COORD_AWAY"), "5s"))
	if err != nil {
		t.Fatal(err)
	}
	for name, fault := range map[string]struct{ down, up func(*child) }{
		"killed":  {(*child).kill, (*child).start},
		"stopped": {(*child).stop, func(c *child) { c.signal(syscall.SIGCONT) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startChild(t)
			var nodes []string
			for i := range 3 {
				key := fmt.Sprint("nodes/", i)
				a, err := coord.Announce(open(t, "/g/", c.addr), key, 2*time.Second, []byte(key), slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = a.Close() })
				nodes = append(nodes, key)
			}
			router := open(t, "/g/", c.addr)
			v := &view{entries: map[string]coord.Entry{}, lost: make(chan time.Time, 100)}
			go v.follow(router.Watch(t.Context(), "nodes/"))
			versions := map[string]int64{}
			within(t, 5*time.Second, "all are registered", func() bool { return v.registered(nodes, versions) })
			versions = v.versions()

			fault.down(c)
			fell := time.Now()
			calls(t, router)
			select {
			case at := <-v.lost:
				t.Logf("the watch noticed after %v", at.Sub(fell).Round(time.Millisecond))
			case <-time.After(6 * time.Second):
				t.Fatal("the watch does not notice")
			}
			time.Sleep(time.Until(fell.Add(away)))
			if !v.same(versions) || len(v.lost) > 0 {
				t.Errorf("the view changed while etcd was away, or Lost came again: %d times", len(v.lost))
			}

			up := time.Now()
			fault.up(c)
			if name == "killed" {
				t.Logf("etcd was ready again after %v", time.Since(up).Round(time.Millisecond))
				up = time.Now()
			}
			within(t, 5*time.Second, "all are registered again", func() bool { return v.registered(nodes, versions) })
			t.Logf("all were registered again, and the watch showed it, after %v", time.Since(up).Round(time.Millisecond))
			time.Sleep(3 * time.Second) // longer than the old leases could last
			if !v.registered(nodes, versions) {
				t.Error("a node that had registered again is gone")
			}
		})
	}
}

// calls makes every kind of call while etcd is away.
func calls(t *testing.T, c *Client) {
	var wg sync.WaitGroup
	for name, call := range map[string]func() error{
		"get":  func() error { _, err := c.Get(t.Context(), "nodes/1"); return err },
		"list": func() error { _, err := c.List(t.Context(), ""); return err },
		"swap": func() error { _, err := c.Swap(t.Context(), "x", nil, 0, nil); return err },
	} {
		wg.Go(func() {
			start := time.Now()
			err := call()
			if took := time.Since(start); !errors.Is(err, coord.ErrUnavailable) || took > 3*time.Second {
				t.Errorf("%s while etcd is away: %v after %v", name, err, took)
			}
		})
	}
	wg.Wait()
}

func within(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// view follows a watch.
type view struct {
	mu      sync.Mutex
	entries map[string]coord.Entry
	lost    chan time.Time
}

func (v *view) follow(events <-chan coord.Event) {
	for e := range events {
		if e.Kind == coord.Lost {
			v.lost <- time.Now()
		}
		v.mu.Lock()
		e.Apply(v.entries)
		v.mu.Unlock()
	}
}

func (v *view) versions() map[string]int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := map[string]int64{}
	for k, e := range v.entries {
		out[k] = e.Version
	}
	return out
}

// registered reports whether all keys are there, each written since it had an old version.
func (v *view) registered(keys []string, old map[string]int64) bool {
	now := v.versions()
	for _, k := range keys {
		if now[k] <= old[k] {
			return false
		}
	}
	return true
}

func (v *view) same(old map[string]int64) bool {
	return fmt.Sprint(v.versions()) == fmt.Sprint(old)
}
