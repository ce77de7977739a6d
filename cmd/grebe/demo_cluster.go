package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"grebe/cluster/coord/embedded"
	"grebe/cluster/status"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/shop/demo"
)

// demoCluster is the demo as a cluster: an etcd in this process, and child processes that serve.
type demoCluster struct {
	w     *cli.World
	dir   string // for configurations, logs and data
	nodes []*demoNode
	ended chan *demoNode // each child at its end; has room for all
}

// demoNode is a child process.
type demoNode struct {
	id   string
	api  string    // host:port of HTTP
	file string    // its configuration
	log  string    // file
	cmd  *exec.Cmd // nil: not started
	done chan struct{}
	err  error // how it ended, once done is closed
}

const (
	demoReady = 2 * time.Minute  // for all nodes to serve and to know each other
	demoStop  = 15 * time.Second // for children to finish their requests
)

// cluster serves the demo as a cluster until it is interrupted. dir has the shop and the models.
func (c *demoCmd) cluster(w *cli.World, dir string) error {
	// Children end with the thread that started them, if this process is killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	data, err := os.MkdirTemp("", "grebe-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	// it logs errors when it is closed, too
	etcd, err := embedded.Start(w.Ctx, embedded.Options{Dir: filepath.Join(data, "etcd")})
	if err != nil {
		return err
	}
	defer etcd.Close()
	d := &demoCluster{w: w, dir: data, ended: make(chan *demoNode, c.Cluster)}
	defer d.stop() // before etcd
	if err := d.configure(c, filepath.Join(dir, demo.ConfigFile), etcd.Addr()); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	for _, n := range d.nodes {
		if err := d.start(n, exe, c); err != nil {
			return err
		}
	}
	if err := d.ready(); err != nil {
		if w.Ctx.Err() != nil {
			return nil
		}
		return err
	}
	d.welcome(exe)
	for {
		select {
		case <-w.Ctx.Done():
			return nil
		case err := <-etcd.Err():
			return fmt.Errorf("etcd failed: %w", err)
		case n := <-d.ended:
			fmt.Fprintf(w.Stdout,
				"%s (pid %d) ended: %v. Start it again, and stop it yourself before the demo: %s serve -c %s\n",
				n.id, n.cmd.Process.Pid, n.err, exe, n.file)
		}
	}
}

// configure writes a configuration for each node.
func (d *demoCluster) configure(c *demoCmd, file, etcd string) error {
	free, err := freeAddresses(2 * c.Cluster)
	if err != nil {
		return err
	}
	for i := range c.Cluster {
		n := &demoNode{id: "n" + strconv.Itoa(i+1), api: free[2*i]}
		if _, port, err := net.SplitHostPort(c.Listen); i == 0 && err == nil && port != "0" {
			n.api = c.Listen
		}
		n.file, n.log = filepath.Join(d.dir, n.id+".yaml"), filepath.Join(d.dir, n.id+".log")
		set := func(path, value string) config.Setting {
			return config.Setting{Path: path, Value: value, Origin: "grebe demo --cluster"}
		}
		cfg, err := config.Load(config.Source{File: file, Env: d.w.Env, Flags: []config.Setting{
			set("listen", n.api), set("admin_listen", ""), set("grpc_listen", ""), set("data_dir", filepath.Join(d.dir, n.id)),
			set("dashboard.user_ids", "shown"), set("dashboard.story", "true"), set("cache.ahead", "off"),
			set("cluster.name", "demo"), set("cluster.coordinator", "etcd://"+etcd), set("cluster.node", n.id),
			set("cluster.listen", free[2*i+1]),
		}})
		if err != nil {
			return err
		}
		if cfg.Threads == 0 {
			cfg.Threads = max(1, runtime.NumCPU()/c.Cluster)
		}
		if err := writeConfig(n.file, cfg); err != nil {
			return err
		}
		d.nodes = append(d.nodes, n)
	}
	return nil
}

func writeConfig(name string, cfg *config.Loaded) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return cfg.Print(f)
}

// freeAddresses returns addresses that nobody listens on.
func freeAddresses(n int) (out []string, err error) {
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close() // after all are chosen, so that they differ
		out = append(out, ln.Addr().String())
	}
	return out, nil
}

// start runs a node. The caller MUST call stop.
func (d *demoCluster) start(n *demoNode, exe string, c *demoCmd) error {
	log, err := os.Create(n.log)
	if err != nil {
		return err
	}
	defer log.Close()
	n.cmd = exec.Command(exe, "serve", "-c", n.file, "--log-level", c.LogLevel, "--log-format", c.LogFormat)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	for _, kv := range d.w.Env { // those of ours are in the file
		if !strings.HasPrefix(kv, "GREBE_") {
			n.cmd.Env = append(n.cmd.Env, kv)
		}
	}
	n.cmd.SysProcAttr = childAttributes()
	if err := n.cmd.Start(); err != nil {
		n.cmd = nil
		return fmt.Errorf("start %s: %w", n.id, err)
	}
	n.done = make(chan struct{})
	go func() {
		if n.err = n.cmd.Wait(); n.err == nil {
			n.err = errors.New("exit status 0")
		}
		close(n.done)
		d.ended <- n
	}()
	return nil
}

// ready waits until all nodes serve and the first one lists all of them.
func (d *demoCluster) ready() error {
	ctx, cancel := context.WithTimeoutCause(d.w.Ctx, demoReady, fmt.Errorf("the nodes are not ready after %v", demoReady))
	defer cancel()
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	for waiting := d.nodes; ; {
		if len(waiting) > 0 && answersReady(ctx, client, waiting[0].api) {
			waiting = waiting[1:]
			continue
		}
		if len(waiting) == 0 && activeNodes(ctx, client, d.nodes[0].api) == len(d.nodes) {
			return nil
		}
		select {
		case n := <-d.ended:
			return fmt.Errorf("%s ended before it served: %w\n%s", n.id, n.err, lastLines(n.log, 5))
		case <-ctx.Done():
			return fmt.Errorf("%w; the first one's log ends with\n%s", context.Cause(ctx), lastLines(d.nodes[0].log, 5))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func answersReady(ctx context.Context, client *http.Client, addr string) bool {
	_, err := fetchBody(ctx, client, "http://"+addr+"/v2/health/ready")
	return err == nil
}

// activeNodes returns how many nodes a node lists as active.
func activeNodes(ctx context.Context, client *http.Client, addr string) (active int) {
	body, err := fetchBody(ctx, client, "http://"+addr+"/v1/cluster")
	var s status.Cluster
	if err != nil || json.Unmarshal(body, &s) != nil {
		return 0
	}
	for i := range s.Nodes {
		if s.Nodes[i].State == "ACTIVE" {
			active++
		}
	}
	return active
}

func fetchBody(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxResponse))
}

// lastLines returns the end of a file.
func lastLines(name string, n int) string {
	data, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// stop ends the children that run, and waits for them.
func (d *demoCluster) stop() {
	for _, n := range d.nodes {
		if n.cmd != nil {
			_ = n.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
		}
	}
	late := time.After(demoStop)
	for _, n := range d.nodes {
		if n.cmd == nil {
			continue
		}
		select {
		case <-n.done:
		case <-late:
			_ = n.cmd.Process.Kill()
			<-n.done
		}
	}
}

// welcome says what runs, and what to try.
func (d *demoCluster) welcome(exe string) {
	first, other := d.nodes[0], d.nodes[1]
	var kills strings.Builder
	for _, n := range d.nodes[1:] {
		fmt.Fprintf(&kills, "  kill -9 %-7d # %s\n", n.cmd.Process.Pid, n.id)
	}
	fmt.Fprintf(d.w.Stdout, "\nGrebe is serving its demo as a cluster of %d on this machine:\n", len(d.nodes))
	for _, n := range d.nodes {
		fmt.Fprintf(d.w.Stdout, "  %-3s  http://%s/  pid %d\n", n.id, n.api, n.cmd.Process.Pid)
	}
	fmt.Fprintf(d.w.Stdout, `%[1]s

Watch the nodes on the Fleet page, or in another terminal:
  http://%[2]s/#fleet
  %[3]s cluster status --watch --server http://%[2]s
Keep them busy from another terminal; any node takes any request, and each line is a status, 200:
  while :; do for u in kaya rosa grace jonas hugo dario; do
    curl -s -o /dev/null -w '%%{http_code}\n' http://%[2]s/v1/recommend \
      -d '{"model": "shop", "user": {"id": "'$u'"}, "n": 5}' &
  done; wait; done
Then kill the busiest node but %[4]s, whose page you look at. It leaves, and the requests go on:
%[5]sStart it again in another terminal, such as %[6]s:
  %[3]s serve -c %[7]s
The demo does not stop a node that you started: stop it yourself before the demo, which deletes its files.
Take a node out and back without a kill:
  %[3]s cluster drain %[6]s --server http://%[2]s
  %[3]s cluster undrain %[6]s --server http://%[2]s

Configurations and logs are in %[8]s until the demo ends. Etcd runs in this process.
Ctrl-C here stops etcd and the nodes that the demo started.
`, aboutDemo, first.api, exe, first.id, kills.String(), other.id, other.file, d.dir)
}
