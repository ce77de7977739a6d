package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"grebe/cluster/coord"
	"grebe/cluster/coord/internal/client"
	"grebe/internal/tick"
)

// watch is one call of Watch.
type watch struct {
	c      *Client
	prefix string
	out    chan<- coord.Event
	q      client.Queue
	lost   bool // the reader was told, or will be
}

// run lists and follows, again and again, until ctx ends.
func (w *watch) run(ctx context.Context) {
	var wait coord.Backoff
	for ctx.Err() == nil {
		if err := w.round(ctx, &wait); err == nil || ctx.Err() != nil {
			continue // the context has ended
		}
		if !w.lost {
			w.lost = true
			w.q.Lost()
		}
		if !w.idle(ctx, &wait) {
			return
		}
	}
}

// idle offers what is due to the reader until the next attempt.
func (w *watch) idle(ctx context.Context, wait *coord.Backoff) bool {
	next := make(chan bool, 1)
	pause, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { next <- wait.Wait(pause) }()
	for {
		out, head := w.head()
		select {
		case out <- head:
			w.q.Pop()
		case more := <-next:
			return more
		}
	}
}

// head returns the reader's channel if an event is due, and nil if not.
func (w *watch) head() (chan<- coord.Event, coord.Event) {
	if e, ok := w.q.Head(); ok {
		return w.out, e
	}
	return nil, coord.Event{}
}

// create is the first message of a stream.
func (w *watch) create(revision int64) *pb.WatchRequest {
	key := w.c.o.Root + w.prefix
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(key), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(key)), StartRevision: revision,
	}}}
}

// progress asks for an answer even if nothing has changed.
func progress() *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
}

// message is what a stream brought.
type message struct {
	r   *pb.WatchResponse
	err error
}

// round lists the keys and follows their changes until something breaks.
func (w *watch) round(ctx context.Context, wait *coord.Backoff) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	entries, revision, err := w.c.list(ctx, w.prefix)
	if err != nil {
		return err
	}
	messages := make(chan message)
	asks := make(chan *pb.WatchRequest, 1) // at most one waits for the stream
	asks <- w.create(revision + 1)
	if !w.c.start(func() { w.receive(ctx, asks, messages) }) {
		return errors.New("the client is closed")
	}
	wait.Reset()
	w.lost = false
	w.q.Reset(entries)
	return w.follow(ctx, revision, asks, messages)
}

// receive opens a stream and passes its messages on. Sending is on a goroutine of its own: it blocks while etcd is
// stopped.
func (w *watch) receive(ctx context.Context, asks <-chan *pb.WatchRequest, messages chan<- message) {
	give := func(m message) bool {
		select {
		case messages <- m:
			return m.err == nil
		case <-ctx.Done():
			return false
		}
	}
	// A member of etcd without a leader ends such a stream instead of keeping quiet.
	stream, err := pb.NewWatchClient(w.c.c.ActiveConnection()).Watch(clientv3.WithRequireLeader(ctx))
	if err != nil {
		give(message{err: err})
		return
	}
	if !w.c.start(func() {
		for {
			select {
			case r := <-asks:
				if stream.Send(r) != nil {
					return // Recv returns the reason
				}
			case <-ctx.Done():
				return
			}
		}
	}) {
		return
	}
	for {
		r, err := stream.Recv()
		if !give(message{r, err}) {
			return
		}
	}
}

// follow applies a stream's messages to the queue and offers the queue to the reader. The stream's member of etcd may
// lag behind the listing for a moment. One that stays behind has lost its data, and would keep quiet until it reached
// the listing's revision.
func (w *watch) follow(ctx context.Context, listed int64, asks chan<- *pb.WatchRequest, messages <-chan message) error {
	ask := time.NewTimer(tick.Wait(askEvery)) // all watches of a process wake it up together
	defer ask.Stop()
	heard := time.Now() // the last message of a member that does not lag
	for {
		out, head := w.head()
		select {
		case <-ctx.Done():
			return nil
		case out <- head:
			w.q.Pop()
		case m := <-messages:
			if m.err != nil {
				return m.err
			}
			if err := w.apply(m.r); err != nil {
				return err
			}
			if m.r.Header.Revision >= listed {
				heard = time.Now()
			}
		case <-ask.C:
			ask.Reset(tick.Wait(askEvery))
			if silent := time.Since(heard); silent >= lostAfter {
				return fmt.Errorf("no answer for %v", silent)
			}
			select {
			case asks <- progress():
			default:
			}
		}
	}
}

// apply queues the changes of a message. An error means that the watch must begin again.
func (w *watch) apply(r *pb.WatchResponse) error {
	if r.Canceled || r.CompactRevision != 0 {
		return fmt.Errorf("cancelled at compaction %d: %s", r.CompactRevision, r.CancelReason)
	}
	for _, e := range r.Events {
		if e.Type == mvccpb.Event_DELETE {
			w.q.Delete(w.c.entry(e.Kv).Key)
		} else {
			w.q.Put(w.c.entry(e.Kv))
		}
	}
	return nil
}
