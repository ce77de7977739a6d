package replica

import (
	"context"
	"errors"
	"fmt"
	"io"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/catalog"
	"grebe/cluster/coord"
)

// Forward implements catalog.Log. It looks for the leader until Options.Patience or the context is over.
func (n *Node) Forward(ctx context.Context, request []byte, repeatable bool) ([]byte, error) {
	within, cancel := context.WithTimeout(ctx, n.o.Patience)
	defer cancel()
	defer context.AfterFunc(n.context, cancel)()
	var wait coord.Backoff
	failed := fmt.Errorf("%w: no node leads", catalog.ErrUnavailable)
	for {
		n.mu.Lock()
		holder, l, problem := n.holder, n.leading, n.problem
		n.mu.Unlock()
		var err error
		switch {
		case problem != nil: // this node would never see the result
			return nil, fmt.Errorf("%w: %w", catalog.ErrUnavailable, problem)
		case l != nil:
			if _, err = n.Term(); err == nil {
				return nil, catalog.ErrLeads
			}
		case holder != "" && holder != n.o.Node:
			var reply []byte
			if reply, err = n.write(within, holder, request); err == nil {
				n.answered()
				return reply, nil
			}
			if errors.Is(err, catalog.ErrUncertain) && !repeatable {
				return nil, n.gaveUp(ctx, err)
			}
		}
		if err != nil && !errors.Is(failed, catalog.ErrUncertain) { // an unknown outcome stays unknown
			failed = err
		}
		if !wait.Wait(within) {
			if errors.Is(failed, catalog.ErrNotLeader) {
				failed = fmt.Errorf("%w: %w", catalog.ErrUnavailable, failed)
			}
			return nil, n.gaveUp(ctx, failed)
		}
	}
}

// noAnswer says that a leader does not answer. The cause is for the log: who writes can do nothing about it.
type noAnswer struct {
	node  string
	cause error
}

func (e *noAnswer) Error() string {
	return fmt.Sprintf("node %s, which leads the catalog, does not answer", e.node)
}

// gaveUp returns the error of a write that was not carried out, with what can be done about it. The first cause of an
// outage is logged.
func (n *Node) gaveUp(ctx context.Context, err error) error {
	var silent *noAnswer
	if errors.As(err, &silent) && !errors.Is(ctx.Err(), context.Canceled) {
		n.mu.Lock()
		first := !n.mute
		n.mute = true
		n.mu.Unlock()
		if first {
			n.o.Log.Warn("the leader of the catalog does not answer", "node", silent.node, "error", silent.cause)
		}
	}
	switch {
	case n.o.Reachable != nil && !n.o.Reachable():
		return fmt.Errorf("%w; the coordinator does not answer, so no node can take the lead: bring it back "+
			"(`grebe cluster status` shows which nodes are there)", err)
	case silent != nil && errors.Is(err, catalog.ErrUncertain):
		return fmt.Errorf("%w; another node leads within seconds: ask it, and write again if it did not", err)
	case silent != nil:
		return fmt.Errorf("%w; another node leads within seconds: try again", err)
	}
	return err
}

// answered ends an outage.
func (n *Node) answered() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mute = false
}

// write has a node carry out a write. Its error is ErrUncertain, or it has changed nothing.
func (n *Node) write(ctx context.Context, node string, request []byte) ([]byte, error) {
	client, err := n.client(node)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", catalog.ErrUnavailable, &noAnswer{node, err})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Write(ctx, large)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", catalog.ErrUnavailable, &noAnswer{node, err})
	}
	for rest := request; ; {
		k := min(len(rest), piece)
		m := &clusterv1.WriteRequest{Piece: rest[:k], Last: k == len(rest)}
		rest = rest[k:]
		err := stream.Send(m)
		if m.Last || errors.Is(err, io.EOF) { // the reply has the reason
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", catalog.ErrUnavailable, &noAnswer{node, err})
		}
	}
	r, err := stream.CloseAndRecv()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", catalog.ErrUncertain, &noAnswer{node, err})
	}
	switch r.Outcome {
	case clusterv1.Outcome_OUTCOME_DONE:
		return r.Reply, nil
	case clusterv1.Outcome_OUTCOME_NOT_LEADER:
		return nil, fmt.Errorf("node %s: %w", node, catalog.ErrNotLeader)
	case clusterv1.Outcome_OUTCOME_UNAVAILABLE:
		return nil, fmt.Errorf("%w: node %s: %s", catalog.ErrUnavailable, node, r.Error)
	}
	return nil, fmt.Errorf("%w: node %s: %s", catalog.ErrUncertain, node, r.Error)
}
