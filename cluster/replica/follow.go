package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/catalog"
	"grebe/cluster/coord"
)

// follow pulls the log of whoever leads.
func (n *Node) follow() {
	var wait coord.Backoff
	for n.context.Err() == nil {
		n.mu.Lock()
		holder, changed := n.holder, n.changed
		n.mu.Unlock()
		if holder == "" || holder == n.o.Node {
			select {
			case <-changed:
			case <-n.context.Done():
			}
			continue
		}
		starting := n.o.Peers() == nil // no address is known yet
		took, err := n.followNode(holder)
		if n.context.Err() != nil {
			return
		}
		level := slog.LevelInfo
		if starting || ordinary(err) {
			level = slog.LevelDebug
		}
		n.o.Log.Log(n.context, level, "cannot follow the catalog's leader yet; trying again", "node", holder,
			"error", err)
		if status.Code(err) == codes.AlreadyExists {
			n.change(func() { n.problem = errors.New(status.Convert(err).Message()) })
		}
		if took {
			wait.Reset()
		}
		wait.Wait(n.context)
	}
}

// errSilent reports that the leader's stream is open and nothing comes.
var errSilent = fmt.Errorf("replica: the leader has sent nothing for %v", mostSilent)

// ordinary reports whether a stream ended as it does in every election: the leader left in order, another node leads,
// or the node that was elected does not lead yet.
func ordinary(err error) bool {
	code := status.Code(err)
	return code == codes.Canceled || code == codes.FailedPrecondition || errors.Is(err, context.Canceled) ||
		errors.Is(err, io.EOF) || errors.Is(err, errClosing)
}

// followNode pulls from a node until that leads no more, or the stream breaks. It reports whether anything came.
func (n *Node) followNode(node string) (took bool, err error) {
	client, err := n.client(node)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancelCause(n.context)
	defer cancel(nil)
	ended := make(chan struct{})
	defer func() { <-ended }()
	defer cancel(nil)
	go func() {
		defer close(ended)
		defer cancel(nil)
		for {
			n.mu.Lock()
			holder, changed := n.holder, n.changed
			n.mu.Unlock()
			if holder != node {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	stream, err := client.Pull(ctx, large)
	if err != nil {
		return false, err
	}
	s := &session{n: n, ctx: ctx, stream: stream, silent: time.AfterFunc(mostSilent, func() { cancel(errSilent) })}
	defer s.silent.Stop()
	defer func() {
		if errors.Is(context.Cause(ctx), errSilent) {
			err = errSilent
		}
	}()
	if err := stream.Send(&clusterv1.PullRequest{Node: n.o.Node, Place: n.place()}); err != nil {
		_, err = stream.Recv() // it has the reason
		return false, err
	}
	for {
		m, err := s.receive()
		if err == nil {
			err = s.take(m)
		}
		if err != nil {
			return took, err
		}
		if !took {
			n.o.Log.Info("following the catalog's leader", "node", node)
		}
		took = true
	}
}

// session is a follower's end of a stream.
type session struct {
	n       *Node
	ctx     context.Context
	stream  clusterv1.Replica_PullClient
	silent  *time.Timer // ends the stream if the leader says nothing
	target  uint64      // index that was committed when the leader first answered
	reached bool
	told    uint64 // index that readers of this node see, as the leader was told
}

// receive returns the next message.
func (s *session) receive() (*clusterv1.PullResponse, error) {
	s.silent.Reset(mostSilent)
	m, err := s.stream.Recv()
	s.silent.Stop()
	return m, err
}

// take applies a message.
func (s *session) take(m *clusterv1.PullResponse) error {
	c := s.n.c
	state, _ := c.LogState()
	if m.Term < state.Last.Term {
		return fmt.Errorf("replica: the leader's term is %d, and this node has records of term %d", m.Term, state.Last.Term)
	}
	if m.Snapshot != nil {
		if err := s.replace(m.Snapshot, state); err != nil {
			return err
		}
	}
	if len(m.Records) > 0 {
		records := make([]catalog.Record, len(m.Records))
		for i, r := range m.Records {
			records[i] = recordOf(r)
		}
		if err := c.Extend(s.ctx, records); err != nil {
			return err
		}
	}
	if state, _ = c.LogState(); m.Snapshot != nil || len(m.Records) > 0 {
		if err := s.stream.Send(&clusterv1.PullRequest{Stored: state.Last.Index}); err != nil {
			return err
		}
	}
	if err := c.Show(s.ctx, m.Committed); err != nil {
		return err
	}
	if state, _ = c.LogState(); state.Shown > s.told {
		if err := s.stream.Send(&clusterv1.PullRequest{Shown: state.Shown}); err != nil {
			return err
		}
		s.told = state.Shown
	}
	return s.caughtUp(m.Committed)
}

// caughtUp notes when this node shows what was committed at the start of the session.
func (s *session) caughtUp(committed uint64) error {
	if s.reached || committed == 0 {
		return nil
	}
	if s.target == 0 {
		s.target = committed
	}
	if state, _ := s.n.c.LogState(); state.Shown >= s.target {
		s.reached = true
		s.n.caught()
	}
	return nil
}

// replace takes a snapshot.
func (s *session) replace(p *clusterv1.LogPlace, state catalog.LogState) error {
	s.n.o.Log.Info("copying the leader's catalog", "index", p.Index, "version", p.Version, "own_index", state.Last.Index)
	head := catalog.Head{ID: p.Catalog, Last: catalog.Mark{Term: p.Term, Index: p.Index}, Version: p.Version}
	err := s.n.c.Replace(s.ctx, head, func() ([]byte, error) {
		m, err := s.receive()
		switch {
		case err != nil:
			return nil, err
		case m.Complete:
			return nil, nil
		case m.Pairs == nil:
			return nil, errors.New("replica: the leader's snapshot ends early")
		}
		return m.Pairs, nil
	})
	if err == nil && (state.Version > 0 || state.Last.Index > 0 || state.Incomplete) && s.n.o.Replaced != nil {
		s.n.o.Replaced()
	}
	return err
}
