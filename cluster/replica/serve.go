package replica

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/catalog"
	"grebe/internal/tick"
)

const (
	piece      = 1 << 20   // bytes of a message, about; an entry of the catalog is sent whole
	mostWrite  = 256 << 20 // bytes of a forwarded write
	heartbeat  = 500 * time.Millisecond
	mostSilent = 6 * heartbeat // then the leader counts as gone
)

// large lets a client take messages with large entries.
var large = grpc.MaxCallRecvMsgSize(1 << 30)

var errClosing = status.Error(codes.Unavailable, "replica: the node is closing")

// enter counts a call, so that Close waits for it. It returns false if the node is closing.
func (n *Node) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.running.Add(1)
	}
	return !n.closed
}

// Place implements the service.
func (n *Node) Place(context.Context, *clusterv1.PlaceRequest) (*clusterv1.LogPlace, error) {
	if !n.enter() {
		return nil, errClosing
	}
	defer n.running.Done()
	return n.place(), nil
}

// Tail implements the service.
func (n *Node) Tail(from *clusterv1.LogPlace, stream clusterv1.Replica_TailServer) error {
	if !n.enter() {
		return errClosing
	}
	defer n.running.Done()
	ok, err := n.continues(from)
	for next := from.Index + 1; ok && err == nil && stream.Context().Err() == nil && n.context.Err() == nil; {
		var records []catalog.Record
		if records, err = n.c.Records(next, piece); len(records) == 0 {
			break
		}
		for _, r := range records {
			if err := stream.Send(messageOf(r)); err != nil {
				return err
			}
		}
		next += uint64(len(records))
	}
	return err
}

// continues reports whether this node's log goes on from a place in another's.
func (n *Node) continues(p *clusterv1.LogPlace) (bool, error) {
	if s, _ := n.c.LogState(); s.ID != p.Catalog || s.Incomplete || p.Incomplete {
		return false, nil
	}
	return n.c.Holds(catalog.Mark{Term: p.Term, Index: p.Index})
}

func messageOf(r catalog.Record) *clusterv1.LogRecord {
	return &clusterv1.LogRecord{Term: r.Term, Index: r.Index, Data: r.Data}
}

func recordOf(r *clusterv1.LogRecord) catalog.Record {
	return catalog.Record{Mark: catalog.Mark{Term: r.Term, Index: r.Index}, Data: r.Data}
}

// Pull implements the service.
func (n *Node) Pull(stream clusterv1.Replica_PullServer) error {
	if !n.enter() {
		return errClosing
	}
	defer n.running.Done()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	n.mu.Lock()
	l := n.leading
	n.mu.Unlock()
	switch {
	case l == nil:
		return status.Error(codes.FailedPrecondition, "replica: this node does not lead")
	case first.Node == "" || first.Node == n.o.Node || first.Place == nil:
		return status.Error(codes.InvalidArgument, "replica: a follower needs a name of its own and a place")
	case first.Place.Catalog != l.catalog && first.Place.Version > 0 && !first.Place.Incomplete:
		if n.c.Stats().Version == 0 {
			l.change(func() { l.way = first.Node })
			return status.Errorf(codes.Unavailable, "replica: this catalog is empty: node %s must lead first", first.Node)
		}
		return status.Errorf(codes.AlreadyExists,
			"node %s has another catalog (%s) than the cluster (%s): start it with an empty data_dir",
			first.Node, first.Place.Catalog, l.catalog)
	}
	ok, err := n.continues(first.Place)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	p := &pull{n: n, l: l, node: first.Node, stream: stream, next: first.Place.Index + 1, cancel: cancel}
	defer p.release()
	if !ok {
		first.Place.Index = 0
	}
	defer p.join(first.Place.Index)()
	n.running.Add(1) // it ends with the stream, soon after this call returns
	go func() {
		defer n.running.Done()
		defer cancel()
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			p.heard(m)
		}
	}()
	if !ok {
		if err := p.snapshot(ctx); err != nil {
			return asStatus(err)
		}
	}
	return asStatus(p.records(ctx))
}

func asStatus(err error) error {
	if errors.Is(err, catalog.ErrGap) {
		return status.Error(codes.OutOfRange, err.Error())
	}
	return err
}

// pull is a leader's end of a follower's stream.
type pull struct {
	n      *Node
	l      *leading
	node   string // the follower
	stream clusterv1.Replica_PullServer
	cancel context.CancelFunc
	next   uint64            // index of the next record to send
	held   *catalog.Snapshot // keeps the records behind it until they are sent
}

// join notes that a follower pulls, and what it has on disk. Call the result when it pulls no more. It ends the stream
// before: a stream that was held up in the network may come after a later one, and then the follower must pull again to
// be heard.
func (p *pull) join(stored uint64) (leave func()) {
	p.l.change(func() {
		f := p.l.followers[p.node]
		if f == nil {
			f = &follower{}
			p.l.followers[p.node] = f
		}
		if f.stream != nil {
			f.stream.cancel()
		}
		f.pulls++
		f.pulled, f.stream, f.stored, f.shown = true, p, stored, 0
	})
	return func() { p.l.change(func() { p.l.followers[p.node].pulls-- }) }
}

// heard notes what a follower has on disk, and what its readers see.
func (p *pull) heard(m *clusterv1.PullRequest) {
	p.l.change(func() {
		if f := p.l.followers[p.node]; f.stream == p {
			f.stored, f.shown = max(f.stored, m.Stored), max(f.shown, m.Shown)
		}
	})
}

func (p *pull) release() {
	if p.held != nil {
		p.held.Close()
		p.held = nil
	}
}

// snapshot sends the whole catalog.
func (p *pull) snapshot(ctx context.Context) (err error) {
	if p.held, err = p.n.c.Snapshot(ctx); err != nil {
		return err
	}
	s := p.held
	head := &clusterv1.LogPlace{Catalog: s.ID, Term: s.Last.Term, Index: s.Last.Index, Version: s.Version}
	if err := p.stream.Send(&clusterv1.PullResponse{Term: p.l.term, Snapshot: head}); err != nil {
		return err
	}
	for ctx.Err() == nil {
		pairs, err := s.Next(piece)
		if err != nil {
			return err
		}
		if err := p.stream.Send(&clusterv1.PullResponse{Term: p.l.term, Pairs: pairs, Complete: pairs == nil}); err != nil {
			return err
		}
		if pairs == nil {
			p.next = s.Last.Index + 1
			return nil
		}
	}
	return ctx.Err()
}

// records sends records, and what is committed, until the context ends.
func (p *pull) records(ctx context.Context) error {
	beat := time.NewTimer(tick.Wait(heartbeat))
	defer beat.Stop()
	told, due := uint64(0), true
	for {
		_, appended := p.n.c.LogState()
		p.l.mu.Lock()
		committed, changed := p.l.committed, p.l.changed
		p.l.mu.Unlock()
		records, err := p.n.c.Records(p.next, piece)
		if err != nil {
			return err
		}
		if len(records) > 0 || committed > told || due {
			m := &clusterv1.PullResponse{Term: p.l.term, Committed: committed}
			for _, r := range records {
				m.Records = append(m.Records, messageOf(r))
			}
			if err := p.stream.Send(m); err != nil {
				return err
			}
			p.next += uint64(len(records))
			told, due = committed, false
			continue
		}
		p.release() // it has all
		select {
		case <-appended:
		case <-changed:
		case <-beat.C:
			beat.Reset(tick.Wait(heartbeat))
			due = true
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// Write implements the service.
func (n *Node) Write(stream clusterv1.Replica_WriteServer) error {
	if !n.enter() {
		return errClosing
	}
	defer n.running.Done()
	var request []byte
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if len(request)+len(m.Piece) > mostWrite {
			return status.Errorf(codes.ResourceExhausted, "replica: a write of more than %d bytes", mostWrite)
		}
		request = append(request, m.Piece...)
		if m.Last {
			break
		}
	}
	if _, err := n.Term(); err != nil {
		return stream.SendAndClose(outcomeOf(nil, err))
	}
	return stream.SendAndClose(outcomeOf(n.c.Serve(stream.Context(), request)))
}

func outcomeOf(reply []byte, err error) *clusterv1.WriteResponse {
	r := &clusterv1.WriteResponse{Outcome: clusterv1.Outcome_OUTCOME_DONE, Reply: reply}
	if err == nil {
		return r
	}
	r.Outcome, r.Error = clusterv1.Outcome_OUTCOME_UNAVAILABLE, err.Error()
	switch {
	case errors.Is(err, catalog.ErrUncertain):
		r.Outcome = clusterv1.Outcome_OUTCOME_UNKNOWN
	case errors.Is(err, catalog.ErrNotLeader):
		r.Outcome = clusterv1.Outcome_OUTCOME_NOT_LEADER
	}
	return r
}
