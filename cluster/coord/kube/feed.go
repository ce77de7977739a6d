package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"grebe/cluster/coord"
	"grebe/cluster/coord/internal/client"
)

// resync is the time after which the ConfigMaps are listed again although nothing seems to be wrong.
const resync = time.Minute

// maxEvent bounds the bytes of one event of a watch: those of etcd's largest object, and some more.
const maxEvent = 4 << 20

var (
	errGone   = errors.New("the history that the watch needs is gone")
	errResync = errors.New("it is time to list again")
)

// holding is a key's value and the id of its Lease, which may be empty.
type holding struct {
	coord.Entry
	lease string
}

// feed follows all ConfigMaps of the cluster, for all watches of a client. It runs from the first watch on.
type feed struct {
	c *Client

	// Of the goroutine that looks at Leases.
	judge      judge
	complained time.Time // when a missing right was logged

	mu      sync.Mutex
	running bool
	synced  bool // view is what the API server had
	lost    bool // the readers were told, or will be
	view    map[string]holding
	readers map[*reader]struct{}
	abort   context.CancelCauseFunc // ends the round in progress; nil: there is none
}

func (f *feed) init(c *Client) {
	f.c, f.view, f.readers = c, map[string]holding{}, map[*reader]struct{}{}
}

// reader is one call of Watch.
type reader struct {
	prefix string
	q      client.Queue  // guarded by feed.mu
	due    chan struct{} // capacity 1: the queue has changed
}

func (r *reader) wake() {
	select {
	case r.due <- struct{}{}:
	default: // it will look anyway
	}
}

// Watch implements coord.Coordinator.
func (c *Client) Watch(ctx context.Context, prefix string) <-chan coord.Event {
	out := make(chan coord.Event)
	ctx, cancel := context.WithCancel(ctx)
	detach := context.AfterFunc(c.ctx, cancel)
	r := &reader{prefix: prefix, due: make(chan struct{}, 1)}
	if !c.start(func() {
		defer close(out)
		defer cancel()
		defer detach()
		c.feed.add(r)
		defer c.feed.drop(r)
		c.feed.pass(ctx, r, out)
	}) {
		detach()
		cancel()
		close(out)
		return out
	}
	c.feed.run()
	return out
}

// run starts the feed's goroutines, once.
func (f *feed) run() {
	f.mu.Lock()
	first := !f.running
	f.running = true
	f.mu.Unlock()
	if first {
		f.c.start(func() { f.follow(f.c.ctx) })
		f.c.start(func() { f.lookOut(f.c.ctx) })
	}
}

func (f *feed) add(r *reader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers[r] = struct{}{}
	switch {
	case f.lost:
		r.q.Lost()
	case f.synced:
		r.q.Reset(f.under(r.prefix))
	}
}

func (f *feed) drop(r *reader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.readers, r)
}

// under returns the entries whose key begins with prefix. The caller has the lock.
func (f *feed) under(prefix string) (out []coord.Entry) {
	for key, h := range f.view {
		if strings.HasPrefix(key, prefix) {
			out = append(out, h.Entry)
		}
	}
	return out
}

// held returns the keys that have a Lease.
func (f *feed) held() (out []holding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.view {
		if h.lease != "" {
			out = append(out, h)
		}
	}
	return out
}

// pass gives a reader its events until ctx ends.
func (f *feed) pass(ctx context.Context, r *reader, out chan<- coord.Event) {
	for {
		f.mu.Lock()
		event, ok := r.q.Head()
		if ok {
			r.q.Pop()
		}
		f.mu.Unlock()
		if !ok {
			select {
			case <-r.due:
				continue
			case <-ctx.Done():
				return
			}
		}
		select {
		case out <- event:
		case <-ctx.Done():
			return
		}
	}
}

// lookOut looks at the Leases until ctx ends. If the API server does not answer, the round in progress ends: its watch
// may be silent for the same reason.
func (f *feed) lookOut(ctx context.Context) {
	for {
		pause, err := f.look(ctx)
		if err != nil && !isStatus(err, http.StatusTooManyRequests) {
			f.mu.Lock()
			if f.abort != nil {
				f.abort(fmt.Errorf("look at the leases: %w", err))
			}
			f.mu.Unlock()
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// follow lists and watches, again and again, until ctx ends.
func (f *feed) follow(ctx context.Context) {
	var wait coord.Backoff
	planned := false
	for ctx.Err() == nil {
		err := f.round(ctx, planned, &wait)
		switch planned = errors.Is(err, errResync); {
		case planned, ctx.Err() != nil:
			continue
		case !errors.Is(err, errGone):
			f.lose(err)
		}
		if !wait.Wait(ctx) {
			return
		}
	}
}

// lose tells the readers that the view may be stale.
func (f *feed) lose(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost {
		return
	}
	f.lost = true
	f.c.o.Log.Warn("the API server's watch is lost", "error", err)
	for r := range f.readers {
		r.q.Lost()
		r.wake()
	}
}

// round lists the ConfigMaps and follows their changes until something breaks, or until it is time to list again.
func (f *feed) round(ctx context.Context, planned bool, wait *coord.Backoff) error {
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	f.mu.Lock()
	f.abort = abort
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.abort = nil
		f.mu.Unlock()
	}()
	objects, version, err := f.c.list(ctx, configMaps, f.c.selector(""))
	if err != nil {
		return err
	}
	f.listed(objects, planned)
	defer time.AfterFunc(resync, func() { abort(errResync) }).Stop()
	for err == nil { // the API server ends every watch now and then: the next one begins where that ended
		began := time.Now()
		err = f.watch(ctx, &version)
		if time.Since(began) > 2*time.Second {
			wait.Reset()
		}
		if err == nil && !wait.Wait(ctx) {
			err = ctx.Err()
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// listed takes a whole listing. A planned one shows what has changed since; any other ends a gap.
func (f *feed) listed(objects []object, planned bool) {
	view := make(map[string]holding, len(objects))
	for i := range objects {
		if h, ok := f.read(&objects[i]); ok {
			view[h.Key] = h
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.view
	f.view, f.synced, f.lost = view, true, false
	for r := range f.readers {
		if !planned {
			r.q.Reset(f.under(r.prefix))
		} else {
			r.compare(before, view)
		}
		r.wake()
	}
}

// compare queues the difference between two views.
func (r *reader) compare(before, after map[string]holding) {
	for _, key := range slices.Collect(maps.Keys(before)) {
		if _, ok := after[key]; !ok && strings.HasPrefix(key, r.prefix) {
			r.q.Delete(key)
		}
	}
	for key, h := range after {
		if old, ok := before[key]; strings.HasPrefix(key, r.prefix) && (!ok || old.Version != h.Version) {
			r.q.Put(h.Entry)
		}
	}
}

// read returns what a ConfigMap holds. One that people have changed by hand is skipped.
func (f *feed) read(o *object) (holding, bool) {
	e, held, err := o.entry()
	if err == nil && f.c.name(e.Key) != o.Metadata.Name {
		err = fmt.Errorf("the ConfigMap %s has the key %q of %s", o.Metadata.Name, e.Key, f.c.name(e.Key))
	}
	if err != nil {
		f.c.o.Log.Warn("skipping an invalid ConfigMap", "error", err)
		return holding{}, false
	}
	return holding{e, held}, true
}

// event is one message of a watch. The object of an error is a status.
type event struct {
	Type   string
	Object struct {
		object
		Code    int
		Message string
	}
}

// watch applies the changes after a version, which it keeps up to date. It returns nil if the API server has ended the
// watch in order.
func (f *feed) watch(ctx context.Context, version *string) error {
	query := url.Values{"labelSelector": {f.c.selector("")}, "watch": {"true"}, "resourceVersion": {*version},
		"allowWatchBookmarks": {"true"}, "timeoutSeconds": {strconv.Itoa(int(resync.Seconds()) + 30)}}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(f.c.o.Timeout, cancel) // until the answer begins
	resp, err := f.c.send(ctx, &request{verb: "watch", resource: configMaps, query: query})
	if err != nil {
		if isStatus(err, http.StatusGone) {
			return errGone
		}
		return err
	}
	defer resp.Body.Close()
	if !late.Stop() {
		return context.DeadlineExceeded
	}
	body := &budget{r: resp.Body}
	for d := json.NewDecoder(body); ; {
		body.left = maxEvent
		var e event
		switch err := d.Decode(&e); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the watch: %w", err)
		}
		if err := f.apply(&e); err != nil {
			return err
		}
		*version = e.Object.Metadata.ResourceVersion
	}
}

// apply takes one event.
func (f *feed) apply(e *event) error {
	switch e.Type {
	case "BOOKMARK": // it only has a version
	case "ADDED", "MODIFIED":
		if h, ok := f.read(&e.Object.object); ok && f.change(h.Key, h, true) > maxItems {
			return errTooMuch
		}
	case "DELETED":
		if h, ok := f.read(&e.Object.object); ok {
			f.change(h.Key, h, false)
		}
	case "ERROR":
		if e.Object.Code == http.StatusGone {
			return errGone
		}
		return fmt.Errorf("the API server ends the watch with %d: %s", e.Object.Code, e.Object.Message)
	default:
		return fmt.Errorf("an event of the unknown type %q", e.Type)
	}
	return nil
}

// change applies one change to the view and tells the readers. It returns the number of keys.
func (f *feed) change(key string, h holding, there bool) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if there {
		f.view[key] = h
	} else {
		delete(f.view, key)
	}
	for r := range f.readers {
		switch {
		case !strings.HasPrefix(key, r.prefix):
			continue
		case there:
			r.q.Put(h.Entry)
		default:
			r.q.Delete(key)
		}
		r.wake()
	}
	return len(f.view)
}

// budget bounds what is read for one event.
type budget struct {
	r    io.Reader
	left int
}

func (b *budget) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooMuch
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
