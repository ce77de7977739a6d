package redisserver

import (
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// StartCluster runs a cluster of n masters, each with a part of the slots, joined by redis-cli. A node that is gone
// takes only its own slots with it. The caller MUST Stop each of them.
func StartCluster(n int) ([]*Server, error) {
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		return nil, fmt.Errorf("redisserver: no redis-cli: %w", ErrAbsent)
	}
	var nodes []*Server
	args := []string{"--cluster", "create"}
	for range n {
		bus, err := freePort()
		if err != nil {
			return nil, stopAll(nodes, err)
		}
		s, err := Start("--cluster-enabled", "yes", "--cluster-port", fmt.Sprint(bus), "--cluster-require-full-coverage",
			"no")
		if err != nil {
			return nil, stopAll(nodes, err)
		}
		nodes = append(nodes, s)
		args = append(args, s.Addr)
	}
	if out, err := exec.Command(cli, append(args, "--cluster-yes")...).CombinedOutput(); err != nil {
		return nil, stopAll(nodes, fmt.Errorf("redisserver: create a cluster: %w: %s", err, out))
	}
	for _, s := range nodes {
		if err := s.joined(); err != nil {
			return nil, stopAll(nodes, err)
		}
	}
	return nodes, nil
}

// joined waits until a node knows of all slots.
func (s *Server) joined() error {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if info, err := s.ask("CLUSTER", "INFO"); err == nil && strings.Contains(info, "cluster_state:ok") {
			return nil
		}
	}
	return fmt.Errorf("redisserver: node %s does not join its cluster", s.Addr)
}

func stopAll(nodes []*Server, err error) error {
	for _, s := range nodes {
		s.Stop()
	}
	return err
}
