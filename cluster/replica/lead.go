package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/catalog"
	"grebe/cluster/coord"
	"grebe/cluster/leader"
	"grebe/internal/tick"
)

// leading is a term in which this node leads.
type leading struct {
	n       *Node
	t       *leader.Term
	term    uint64 // of the log
	catalog string // id
	first   uint64 // index of the term's first record
	object  *leader.Object
	ctx     context.Context // ends with the term

	mu        sync.Mutex
	set       inSync               // as the coordinator has confirmed it
	required  []string             // members of set, and those that are being added or removed
	followers map[string]*follower // by node; all of set but this node, and those that pull
	committed uint64               // index
	ready     bool                 // the term's first record is committed
	way       string               // a node with a catalog, to which an empty one gives way
	changed   chan struct{}        // closed when something changes
}

// follower is what the leader knows of another node.
type follower struct {
	pulls  int       // streams
	stream *pull     // the last one: it alone says what is stored
	pulled bool      // it has pulled in this term
	stored uint64    // index of its last record on disk, as far as it said
	shown  uint64    // index of the last record that its readers see, as far as it said
	goal   uint64    // the index that it has to reach next
	since  time.Time // when goal was set
}

// lead runs in a term of the election. It returns an error if this node may not lead.
func (n *Node) lead(ctx context.Context, t *leader.Term) error {
	object, err := t.Claim(ctx, inSyncKey)
	if err != nil {
		return err
	}
	set, err := n.founded(ctx, object)
	if err != nil {
		return err
	}
	state, _ := n.c.LogState()
	switch {
	case !set.has(n.o.Node):
		return errors.New("replica: this node is not in sync")
	case set.Catalog != state.ID || state.Incomplete:
		return fmt.Errorf("replica: this node has catalog %s (incomplete: %v), and the cluster's is %s", state.ID,
			state.Incomplete, set.Catalog)
	}
	l := &leading{n: n, t: t, term: set.Base + uint64(t.Number), catalog: set.Catalog, object: object, set: set, ctx: ctx,
		required: set.Members, followers: map[string]*follower{}, changed: make(chan struct{})}
	n.collect(ctx, l)
	head, err := n.checkHead(ctx, t)
	if err != nil {
		return err
	}
	first, err := n.c.BeginTerm(ctx, l.term)
	if err != nil {
		return err
	}
	l.first = first.Index
	for _, f := range l.followers {
		f.goal, f.since = first.Index, time.Now()
	}
	n.change(func() { n.leading = l })
	defer n.change(func() { n.leading = nil })
	return l.run(ctx, head)
}

// founded returns the in-sync set. The first leader of a cluster creates it, unless it knows a node that has more. If
// this node was in a cluster before, the coordinator has lost its data: then all nodes that had the whole catalog must
// answer.
func (n *Node) founded(ctx context.Context, object *leader.Object) (set inSync, err error) {
	if len(object.Data()) > 0 {
		err := json.Unmarshal(object.Data(), &set)
		return set, err
	}
	needed, err := n.remembered()
	if err != nil {
		return set, err
	}
	peers := n.o.Peers()
	for wait := (coord.Backoff{}); peers == nil; peers = n.o.Peers() {
		if !wait.Wait(ctx) {
			return set, ctx.Err()
		}
	}
	mine := n.place()
	for _, node := range union(needed, slices.Collect(maps.Keys(peers))) {
		if node == n.o.Node {
			continue
		}
		theirs, err := n.placeOf(ctx, node)
		switch {
		case err == nil && !theirs.Incomplete && compare(theirs, mine) > 0:
			return set, fmt.Errorf("replica: node %s has a newer catalog: it must lead first", node)
		case err != nil && slices.Contains(needed, node):
			return set, fmt.Errorf("replica: the coordinator lost its data, and node %s may have a newer catalog: %w", node, err)
		case err != nil:
			n.o.Log.Info("creating the cluster's catalog although a node does not answer", "node", node, "error", err)
		}
	}
	set = inSync{Catalog: mine.Catalog, Base: mine.Term, Members: []string{n.o.Node}}
	return set, object.Write(ctx, set.encode())
}

func (n *Node) placeOf(ctx context.Context, node string) (*clusterv1.LogPlace, error) {
	client, err := n.client(node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, n.o.TTL/3)
	defer cancel()
	return client.Place(ctx, &clusterv1.PlaceRequest{})
}

// compare orders places: an empty catalog is before others, then by term, index and version.
func compare(a, b *clusterv1.LogPlace) int {
	return slices.Compare([]uint64{min(a.Version, 1), a.Term, a.Index, a.Version},
		[]uint64{min(b.Version, 1), b.Term, b.Index, b.Version})
}

// collect meets the other members of the set, and takes over records that the leader before may not have acknowledged.
// So their logs need no truncation, which would take a snapshot. It is an attempt: nothing depends on it.
func (n *Node) collect(parent context.Context, l *leading) {
	ctx, cancel := context.WithTimeout(parent, n.o.TTL/3)
	defer cancel()
	for _, m := range l.set.Members {
		if m == n.o.Node {
			continue
		}
		f := &follower{}
		if err := n.collectFrom(ctx, m); err != nil {
			if parent.Err() == nil {
				n.o.Log.Info("cannot ask a node for the end of its log; leading without it until it follows", "node", m,
					"error", err)
			}
			f.pulled = true // do not wait for it longer than for one whose connection broke
		}
		l.followers[m] = f
	}
}

func (n *Node) collectFrom(ctx context.Context, node string) error {
	client, err := n.client(node)
	if err != nil {
		return err
	}
	stream, err := client.Tail(ctx, n.place(), large)
	if err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := n.c.Extend(ctx, []catalog.Record{recordOf(r)}); err != nil {
			return err
		}
	}
}

// checkHead claims catalog/head. It returns an error if this node lacks what was committed: its files are older.
func (n *Node) checkHead(ctx context.Context, t *leader.Term) (*leader.Object, error) {
	object, err := t.Claim(ctx, headKey)
	if err != nil {
		return nil, err
	}
	var head Head
	if len(object.Data()) > 0 {
		if err := json.Unmarshal(object.Data(), &head); err != nil {
			return nil, fmt.Errorf("replica: %s: %w", headKey, err)
		}
	}
	if state, _ := n.c.LogState(); head.Index > state.Last.Index || head.Term > state.Last.Term {
		return nil, fmt.Errorf("replica: the log ends at %v, and %v was committed: the files of this node are older",
			state.Last, head)
	}
	return object, nil
}

// headEvery is the time between two writes of the head, if it changed.
const headEvery = time.Second

// run keeps the in-sync set and the head until the term ends.
func (l *leading) run(ctx context.Context, head *leader.Object) error {
	look := l.n.o.Lag / 8
	looks := time.NewTimer(tick.Wait(look))
	defer looks.Stop()
	heads := time.NewTimer(tick.Wait(headEvery))
	defer heads.Stop()
	var last Head
	for {
		moved := l.moved()
		if err := l.keepSet(ctx); err != nil {
			return err
		}
		if err := l.show(ctx); err != nil {
			return err
		}
		if err := l.giveWay(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-moved:
		case <-looks.C:
			looks.Reset(tick.Wait(look))
		case <-heads.C:
			heads.Reset(tick.Wait(headEvery))
			if err := l.publish(ctx, head, &last); err != nil {
				return err
			}
		}
	}
}

// moved returns a channel that is closed with the next change.
func (l *leading) moved() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// change applies f, finds out what is committed and wakes those who wait.
func (l *leading) change(f func()) {
	state, _ := l.n.c.LogState()
	alone := l.n.alone()
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	l.count(state.Last.Index, alone)
	l.wake()
}

// recount finds out what is committed after the log or the cluster has changed.
func (l *leading) recount() {
	state, _ := l.n.c.LogState()
	alone := l.n.alone()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count(state.Last.Index, alone) {
		l.wake()
	}
}

// count finds out what is committed, and reports whether that is more than before. The caller has the lock.
func (l *leading) count(last uint64, alone bool) bool {
	if len(l.set.Members) == 1 && !alone {
		return false
	}
	for _, m := range l.required {
		if m != l.n.o.Node {
			last = min(last, l.followers[m].stored)
		}
	}
	more := last > l.committed
	l.committed = max(l.committed, last)
	return more
}

// wake tells those who wait for a change. The caller has the lock.
func (l *leading) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// alone reports whether the cluster has no other node.
func (n *Node) alone() bool { return len(n.o.Peers()) == 1 }

// show shows what was committed without its writer: the records of earlier terms and the first one of this, and those
// whose writers gave up.
func (l *leading) show(ctx context.Context) error {
	l.mu.Lock()
	committed, ready := l.committed, l.ready
	l.mu.Unlock()
	if committed < l.first {
		return nil
	}
	if err := l.n.c.Show(ctx, committed); err != nil && ctx.Err() == nil {
		return err
	}
	if !ready && ctx.Err() == nil {
		l.change(func() { l.ready = l.way == "" })
		l.n.caught()
	}
	return nil
}

// keepSet changes the in-sync set if that is due.
func (l *leading) keepSet(ctx context.Context) error {
	members := l.due(time.Now())
	if members == nil {
		l.recount() // the cluster may have become one of a single node
		return nil
	}
	l.mu.Lock()
	next := l.set
	next.Members = members
	l.required = union(l.required, members)
	l.mu.Unlock()
	err := l.object.Write(ctx, next.encode())
	switch {
	case err == nil:
		l.n.o.Log.Info("nodes in sync with the catalog", "nodes", members)
		l.change(func() { l.set, l.required = next, members })
		return nil
	case errors.Is(err, coord.ErrUnavailable):
		return nil // both sets stay required, and it is tried again
	}
	return err
}

func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

// due returns the members that the set should have at a time; nil: those that it has.
func (l *leading) due(now time.Time) []string {
	state, _ := l.n.c.LogState()
	alone := l.n.alone()
	l.mu.Lock()
	defer l.mu.Unlock()
	members := []string{l.n.o.Node}
	var late []string
	for node, f := range l.followers {
		switch {
		case !l.set.has(node):
			if f.pulls > 0 && f.stored >= max(l.first, l.committed) {
				members = append(members, node)
			}
		case f.late(now, state.Last.Index, l.n.o.Lag):
			late = append(late, node)
		default:
			members = append(members, node)
		}
	}
	if len(members) == 1 && !alone {
		members = append(members, late...) // without them no write is possible either, and they have all that is committed
	}
	slices.Sort(members)
	if slices.Equal(members, l.set.Members) && slices.Equal(members, l.required) {
		return nil
	}
	return members
}

// late reports whether a follower takes too long to store what the leader has.
func (f *follower) late(now time.Time, last uint64, lag time.Duration) bool {
	if f.stored >= f.goal {
		if f.goal = last; f.stored >= last {
			f.since = now
			return false
		}
		f.since = now
	}
	if f.pulled && f.pulls == 0 {
		lag /= 4 // its connection is broken
	}
	return now.Sub(f.since) >= lag
}

// giveWay ends the term if this cluster's catalog is empty and a node came that has one: that is the cluster's from
// then on.
func (l *leading) giveWay(ctx context.Context) error {
	l.mu.Lock()
	way := l.way
	if way != "" {
		l.ready = false // no write begins
	}
	l.mu.Unlock()
	if way == "" {
		return nil
	}
	s, err := l.n.c.Snapshot(ctx) // after all writes that have begun
	if err != nil {
		return err
	}
	s.Close()
	if s.Version > 0 {
		l.change(func() { l.way, l.ready = "", true })
		return nil
	}
	if err := l.object.Write(ctx, nil); err != nil {
		return err
	}
	return fmt.Errorf("replica: node %s has a catalog, and this cluster's is empty: it must lead first", way)
}

// publish writes catalog/head if it has changed.
func (l *leading) publish(ctx context.Context, object *leader.Object, last *Head) error {
	l.mu.Lock()
	ready := l.ready
	l.mu.Unlock()
	state, _ := l.n.c.LogState()
	head := Head{Term: l.term, Index: state.Shown, Version: l.n.c.Stats().Version}
	if !ready || head == *last {
		return nil
	}
	data, _ := json.Marshal(head) // of numbers
	err := object.Write(ctx, data)
	if err == nil {
		*last = head
	}
	if errors.Is(err, coord.ErrUnavailable) {
		return nil
	}
	return err
}

// Term implements catalog.Log.
func (n *Node) Term() (uint64, error) {
	n.mu.Lock()
	l := n.leading
	n.mu.Unlock()
	if l == nil {
		return 0, catalog.ErrNotLeader
	}
	alone := n.alone()
	l.mu.Lock()
	usable := l.ready && (len(l.set.Members) > 1 || alone)
	l.mu.Unlock()
	if state, _ := n.c.LogState(); !usable || state.Waiting {
		return 0, fmt.Errorf("%w: no other node has the whole catalog", catalog.ErrUnavailable)
	}
	if !l.t.Leading() {
		return 0, catalog.ErrNotLeader
	}
	return l.term, nil
}

// Commit implements catalog.Log.
func (n *Node) Commit(m catalog.Mark) error {
	n.mu.Lock()
	l := n.leading
	n.mu.Unlock()
	if l == nil || l.term != m.Term {
		return errors.New("the term is over")
	}
	l.recount() // a single node has committed it
	patience := time.NewTimer(min(n.o.Patience, 2*n.o.Lag))
	defer patience.Stop()
	for {
		l.mu.Lock()
		committed, changed := l.committed, l.changed
		l.mu.Unlock()
		if committed >= m.Index {
			return nil
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
			return errors.New("the term is over")
		case <-patience.C:
			return errors.New("no other node has stored it in time")
		}
	}
}

// seenWithin bounds the time in which a write waits for readers of other nodes.
const seenWithin = 250 * time.Millisecond

// Seen implements catalog.Log.
func (n *Node) Seen(ctx context.Context, index uint64) {
	n.mu.Lock()
	l := n.leading
	n.mu.Unlock()
	if l == nil {
		return
	}
	patience := time.NewTimer(seenWithin)
	defer patience.Stop()
	for {
		l.mu.Lock()
		seen, changed := l.seen(index), l.changed
		l.mu.Unlock()
		if seen {
			return
		}
		select {
		case <-changed:
		case <-patience.C:
			return
		case <-l.ctx.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// seen reports whether readers of all nodes in the set see a record, as far as these nodes say. The caller has the
// lock.
func (l *leading) seen(index uint64) bool {
	for _, m := range l.set.Members {
		if f := l.followers[m]; f != nil && f.pulls > 0 && f.shown > 0 && f.shown < index {
			return false
		}
	}
	return true
}
