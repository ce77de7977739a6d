package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"grebe/cluster/status"
	"grebe/internal/cli"
)

type clusterLeaveCmd struct {
	clusterFlags
}

func (clusterLeaveCmd) Help() string {
	return `For hooks that run before a process is stopped, such as preStop of Kubernetes. The process that is asked is not
ready from then on, and other processes send it no new requests. The command waits until it has worked off its queue,
for at most --timeout, and exits with 1 if it has not. Nothing is stored: the process comes back when it is started
again. To take a node out for longer, use drain.

Example:

    grebe cluster leave --server http://127.0.0.1:8081 --timeout 15s`
}

// leaveEvery is the time between two looks at the queue. The queue has to be empty at two looks in a row: requests that
// were on their way come in between.
const leaveEvery = 250 * time.Millisecond

func (c *clusterLeaveCmd) Run(w *cli.World) error {
	end := time.Now().Add(c.Timeout)
	client, err := c.Client(w, max(c.Timeout, 10*time.Second)) // the timeout is for the queue
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	s, err := c.read(w, client, http.MethodGet, "/v1/cluster")
	if err != nil {
		return err
	}
	if _, err = c.read(w, client, http.MethodPost, "/v1/cluster/nodes/"+url.PathEscape(s.Self)+":leave"); err != nil {
		return err
	}
	for empty := 0; ; {
		select {
		case <-w.Ctx.Done():
			return w.Ctx.Err()
		case <-time.After(leaveEvery):
		}
		if s, err = c.read(w, client, http.MethodGet, "/v1/cluster"); err != nil {
			return err
		}
		left := backlog(s)
		if empty++; left > 0 {
			empty = 0
		}
		if empty == 2 {
			_, err := fmt.Fprintf(w.Stdout, "%s has left: its queue is empty, and it can be stopped.\n", s.Self)
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("cluster: %s gets no new requests, but %.0f ms of work are left after %v; SIGTERM finishes it "+
				"within limits.shutdown_ms",
				s.Self, left, c.Timeout)
		}
	}
}

// backlog returns the predicted time, in milliseconds, until the queues of the process that was asked are empty.
func backlog(s *status.Cluster) (left float64) {
	for _, n := range s.Nodes {
		if n.ID != s.Self {
			continue
		}
		for _, m := range n.Models {
			left += m.BacklogMs
		}
	}
	return left
}

// read sends a request that is answered with the cluster.
func (c *clusterFlags) read(w *cli.World, client *http.Client, method, path string) (*status.Cluster, error) {
	body, err := c.call(w, client, method, path)
	if err != nil {
		return nil, err
	}
	s := new(status.Cluster)
	if err := json.Unmarshal(body, s); err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", c.Server, err)
	}
	return s, nil
}
