package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"grebe/cluster/status"
	"grebe/serve"
	"grebe/server/guard"
)

// Fleet is the cluster that this process is a member of.
type Fleet interface {
	// Status returns the cluster as this process sees it. The server does not change it.
	Status() *status.Cluster
	// Drain marks a node so that no process sends it new requests, or removes the mark. The mark lies in the
	// coordinator, so it outlives all processes.
	Drain(ctx context.Context, node string, drained bool) error
	// Leave makes other processes send this one no new requests, until it is started again.
	Leave()
}

// nodes is the path of the nodes of a cluster.
const nodes = "/v1/cluster/nodes/"

// nodeVerbs are the routes /v1/cluster/nodes/{id}:verb. They are open: an operator drains nodes that have too much to
// do.
var nodeVerbs = map[string]*route{":drain": drainRoute(true), ":undrain": drainRoute(false), ":leave": {
	op: "cluster", role: guard.Admin, open: true, methods: map[string]handler{
		"POST": func(s *Server, _ *http.Request, id string) (reply, error) { return s.leave(id) }}}}

func drainRoute(drained bool) *route {
	return &route{op: "cluster", role: guard.Admin, open: true, methods: map[string]handler{
		"POST": func(s *Server, r *http.Request, id string) (reply, error) { return s.drain(r.Context(), id, drained) }}}
}

// findNode returns the route of a call for a node, and the node's id. The path begins with nodes.
func findNode(path string) (*route, string) {
	rest := strings.TrimPrefix(path, nodes)
	for verb, rt := range nodeVerbs {
		name, ok := strings.CutSuffix(rest, verb)
		if !ok || name == "" || strings.Contains(name, "/") {
			continue
		}
		if id, err := url.PathUnescape(name); err == nil {
			return rt, id
		}
	}
	return noRoute, ""
}

func errNoCluster() error {
	return serve.Errorf(serve.NotFound, "", "this server is not a member of a cluster: add a cluster section to its "+
		"configuration")
}

func (s *Server) getCluster(*http.Request, string) (reply, error) {
	if s.cfg.Fleet == nil {
		return reply{}, errNoCluster()
	}
	return clusterReply(s.cfg.Fleet.Status())
}

func (s *Server) drain(ctx context.Context, id string, drained bool) (reply, error) {
	if s.cfg.Fleet == nil {
		return reply{}, errNoCluster()
	}
	known := s.cfg.Fleet.Status().Nodes
	if !slices.ContainsFunc(known, func(n status.Node) bool { return n.ID == id }) {
		return reply{}, serve.Errorf(serve.NotFound, "", "no node %s in the cluster: GET /v1/cluster lists the nodes",
			serve.Quoted(id))
	}
	err := s.cfg.Fleet.Drain(ctx, id, drained)
	switch {
	case err == nil:
		return clusterReply(s.cfg.Fleet.Status())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return reply{}, err
	}
	return reply{}, serve.Errorf(serve.Unavailable, "", "the mark of node %s cannot be written: %v", serve.Quoted(id), err)
}

// leave prepares this process for its end: it is not ready, and other members send it nothing new. It answers requests
// that come all the same.
func (s *Server) leave(id string) (reply, error) {
	if s.cfg.Fleet == nil {
		return reply{}, errNoCluster()
	}
	if self := s.cfg.Fleet.Status().Self; id != self {
		return reply{}, serve.Errorf(serve.Conflict, "", "this is node %s: ask node %s itself to leave, or drain it",
			serve.Quoted(self), serve.Quoted(id))
	}
	s.setState(draining)
	s.cfg.Fleet.Leave()
	return clusterReply(s.cfg.Fleet.Status())
}

func clusterReply(c *status.Cluster) (reply, error) {
	var b bytes.Buffer
	err := json.NewEncoder(&b).Encode(c)
	return reply{body: b.Bytes()}, err
}
