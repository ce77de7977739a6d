package simcheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"grebe/bench/drive"
	"grebe/cluster/status"
	"grebe/sim"
)

// Link is what nodes of a cluster measured between each other.
type Link struct {
	Nodes  int     `json:"nodes"`
	TripMs float64 `json:"trip_ms"`   // of a request and its answer
	RateMB float64 `json:"rate_mb_s"` // of KV
	Blocks int64   `json:"blocks"`    // that were sent
	Late   int64   `json:"late"`      // of these
	Bytes  int64   `json:"bytes"`
}

// A network that no KV went over. It is about what nodes assume, too.
const (
	defaultTrip = .5   // ms
	defaultRate = 1000 // MB/s
)

// start starts a server, or a cluster of several. The caller stops those that it returns, also with an error.
func (s *site) start(ctx context.Context, nodes int) (servers []*drive.Server, err error) {
	s.runs++
	coordinator, etcd := "embedded", ""
	if nodes > 1 {
		if etcd, err = freeAddress(ctx); err != nil {
			return nil, err
		}
	}
	for i := range nodes {
		settings := append([]drive.Setting{
			{Key: "slo_ms", Value: fmt.Sprint(s.o.Deadline.Milliseconds())},
			{Key: "data_dir", Value: filepath.Join(s.dir, fmt.Sprintf("data%d.%d", s.runs, i))},
			{Key: "models[0].host_memory", Value: fmt.Sprint(s.host)},
		}, s.o.Settings...)
		if s.o.Where && nodes == 1 {
			s.log = filepath.Join(s.dir, fmt.Sprint("log", s.runs))
			settings = append(settings, drive.Setting{Key: "record", Value: s.log})
		}
		if nodes > 1 {
			peer, err := freeAddress(ctx)
			if err != nil {
				return servers, err
			}
			settings = append(settings,
				drive.Setting{Key: "cluster.name", Value: "check"}, drive.Setting{Key: "cluster.node", Value: fmt.Sprint("n", i)},
				drive.Setting{Key: "cluster.listen", Value: peer}, drive.Setting{Key: "cluster.coordinator", Value: coordinator},
				drive.Setting{Key: "cluster.etcd", Value: etcd})
			coordinator = "etcd://" + etcd
		}
		server, err := drive.Start(ctx, s.o.Program, s.shop.Config, settings)
		if err != nil {
			return servers, err
		}
		servers = append(servers, server)
	}
	if nodes > 1 {
		err = together(ctx, servers)
	}
	return servers, err
}

// freeAddress returns an address on this machine that nobody listens on.
func freeAddress(ctx context.Context) (string, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// together waits until each server knows what all others hold.
func together(ctx context.Context, servers []*drive.Server) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, server := range servers {
		for {
			c, err := clusterOf(ctx, server)
			if err == nil && known(c, len(servers)) {
				break
			}
			select {
			case <-ctx.Done():
				return errors.Join(errors.New("the nodes do not find each other"), err, ctx.Err())
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

// known reports whether a process knows what n nodes hold.
func known(c *status.Cluster, n int) bool {
	for i := range c.Nodes {
		x := &c.Nodes[i]
		if x.State != "ACTIVE" || x.Drained || len(x.Models) == 0 || !x.Models[0].Known {
			return false
		}
	}
	return len(c.Nodes) == n
}

// clusterOf returns the cluster as a server sees it.
func clusterOf(ctx context.Context, server *drive.Server) (*status.Cluster, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/v1/cluster", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %.200s", resp.Status, text)
	}
	c := new(status.Cluster)
	return c, json.Unmarshal(text, c)
}

// measureLink returns what the nodes measured.
func measureLink(ctx context.Context, servers []*drive.Server) (*Link, error) {
	l := &Link{Nodes: len(servers)}
	links := 0
	for _, server := range servers {
		c, err := clusterOf(ctx, server)
		if err != nil {
			return nil, err
		}
		for _, t := range c.Transfers {
			if t.To != c.Self || t.RateMB <= 0 {
				continue
			}
			links++
			l.TripMs, l.RateMB = l.TripMs+t.TripMs, l.RateMB+t.RateMB
			l.Blocks, l.Late, l.Bytes = l.Blocks+t.Blocks, l.Late+t.Late, l.Bytes+t.Bytes
		}
	}
	if links == 0 {
		l.TripMs, l.RateMB = defaultTrip, defaultRate
		return l, nil
	}
	l.TripMs /= float64(links)
	l.RateMB /= float64(links)
	return l, nil
}

// connect has a scenario's nodes be connected like this. Each node routes.
func (l *Link) connect(c *sim.Scenario) {
	c.Fleet.Nodes, c.Route.Inside = l.Nodes, true
	c.Network.Bandwidth, c.Network.Holders = sim.Bandwidth(8e6*l.RateMB), true
	c.Network.Latency = sim.Duration{Duration: time.Duration(l.TripMs / 2 * float64(time.Millisecond))}
}

// writeCluster shows people how a cluster was compared.
func (r *Rate) writeCluster(w io.Writer) {
	l := r.Link
	fmt.Fprintf(w, "\n%d nodes at %.1f/s: %.1f tokens of a request are computed, sim %.1f", r.Nodes, r.Rate,
		r.Server.Computed, r.Sim.Computed)
	if r.ServerFall > 0 {
		fmt.Fprintf(w, "; that is %.3f of one node's, sim %.3f", r.ServerFall, r.SimFall)
	}
	fmt.Fprintf(w, "\nshares of the nodes %.3f, sim %.3f; users first %.3f, sim %.3f\n",
		r.Server.Spread, r.Sim.Spread, r.Server.User, r.Sim.User)
	fmt.Fprintf(w, "%d blocks with %.1f MB were sent between nodes, %d too late; %.0f MB/s, %.2f ms a round trip\n",
		l.Blocks, float64(l.Bytes)/1e6, l.Late, l.RateMB, l.TripMs)
}

// cpuSeconds returns the CPU time of servers.
func cpuSeconds(ctx context.Context, servers []*drive.Server) (sum float64, err error) {
	for _, server := range servers {
		m, err := server.Metrics(ctx)
		if err != nil {
			return 0, err
		}
		sum += m["process_cpu_seconds_total"]
	}
	return sum, nil
}
