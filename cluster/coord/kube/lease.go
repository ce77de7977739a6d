package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"time"

	"grebe/cluster/coord"
	"grebe/cluster/coord/internal/client"
)

// lease is a Lease that this client renews.
type lease struct {
	c    *Client
	id   string
	name string
	ttl  time.Duration
	stop context.CancelFunc
	lost chan struct{}
}

// Grant implements coord.Coordinator. The ttl is rounded up to whole seconds.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (coord.Lease, error) {
	seconds := max(1, int(math.Ceil(ttl.Seconds())))
	l := &lease{c: c, id: random(10), ttl: time.Duration(seconds) * time.Second, lost: make(chan struct{})}
	l.name = c.leaseName(l.id)
	host, _ := os.Hostname() // for people
	sent := time.Now()
	o := object{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: metadata{Name: l.name, Labels: c.labels()},
		Spec: &leaseSpec{Holder: cmp.Or(host, "grebe"), Seconds: seconds, Acquired: stamp(sent), Renewed: stamp(sent)}}
	if err := c.call(ctx, request{verb: "create", resource: leases, body: &o}, nil); err != nil {
		return nil, failed(ctx, "grant", ttl.String(), err)
	}
	var keep context.Context
	keep, l.stop = context.WithCancel(c.ctx)
	if !c.start(func() {
		defer close(l.lost)
		defer l.stop()
		client.Keep(keep, l.ttl, sent, l.renew)
	}) {
		l.stop()
		return nil, failed(c.ctx, "grant", ttl.String(), nil)
	}
	return l, nil
}

// renew changes the Lease, unless it is gone.
func (l *lease) renew(ctx context.Context) error {
	patch := map[string]any{"spec": leaseSpec{Renewed: stamp(time.Now())}}
	err := l.c.call(ctx, request{verb: "patch", resource: leases, name: l.name, body: patch}, nil)
	if isStatus(err, http.StatusNotFound) {
		return coord.ErrLeaseLost
	}
	if err != nil {
		l.c.o.Log.Debug("cannot renew a lease", "lease", l.name, "error", err)
	}
	return err
}

func (l *lease) TTL() time.Duration    { return l.ttl }
func (l *lease) Lost() <-chan struct{} { return l.lost }

func (l *lease) over() bool {
	select {
	case <-l.lost:
		return true
	default:
		return false
	}
}

// Close deletes the Lease first: a key that is written meanwhile has no Lease then, and is deleted by those who watch.
func (l *lease) Close(ctx context.Context) error {
	l.stop()
	<-l.lost
	if err := l.c.remove(ctx, leases, l.name, 0); err != nil && !isStatus(err, http.StatusNotFound) {
		return failed(ctx, "revoke", l.name, err)
	}
	objects, _, err := l.c.list(ctx, configMaps, l.c.selector("")+","+labelLease+"="+l.id)
	if err != nil {
		return failed(ctx, "revoke", l.name, err)
	}
	var failures []error
	for i := range objects {
		e, _, err := objects[i].entry()
		if err == nil {
			err = l.c.reap(ctx, e)
		}
		if err != nil {
			failures = append(failures, failed(ctx, "revoke", l.name, err))
		}
	}
	return errors.Join(failures...)
}

// reap deletes a key whose Lease is gone, unless it was written again.
func (c *Client) reap(ctx context.Context, e coord.Entry) error {
	err := c.remove(ctx, configMaps, c.name(e.Key), e.Version)
	if isStatus(err, http.StatusConflict) || isStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// sighting is a Lease as a listing shows it.
type sighting struct {
	name    string
	version int64
	ttl     time.Duration
}

// judge decides which Leases have expired, from listings alone. A Lease expires when listings show it unchanged for its
// ttl and a tenth, by the observer's clock. If there was no listing for half of its ttl, its time begins again: its
// owner may not have reached the API server either.
type judge struct {
	seen map[string]since
	last time.Time // of the last listing
}

type since struct {
	version int64
	at      time.Time
}

// saw takes a listing that was asked for and received at these times, and returns the Leases that have expired.
func (j *judge) saw(sent, received time.Time, listing []sighting) (expired []sighting) {
	gap, now := sent.Sub(j.last), make(map[string]since, len(listing))
	for _, l := range listing {
		s, known := j.seen[l.name]
		if !known || s.version != l.version || gap > l.ttl/2 {
			s = since{l.version, received}
		}
		now[l.name] = s
		if sent.Sub(s.at) >= l.ttl+l.ttl/10 {
			expired = append(expired, l)
		}
	}
	j.seen, j.last = now, received
	return expired
}

const (
	lookEvery = 2 * time.Second        // at the Leases
	lookLeast = 250 * time.Millisecond // for short Leases
)

// interval returns how long to wait before the next listing, so that every Lease is seen often enough.
func interval(listing []sighting) time.Duration {
	every := lookEvery
	for _, l := range listing {
		every = min(every, l.ttl/4)
	}
	return max(every, lookLeast)
}

// sightings reads Leases.
func (c *Client) sightings(objects []object) (out []sighting) {
	for i := range objects {
		o := &objects[i]
		version, err := o.version()
		if err == nil && (o.Spec == nil || o.Spec.Seconds <= 0) {
			err = fmt.Errorf("the Lease %s has no duration", o.Metadata.Name)
		}
		if err != nil {
			c.o.Log.Warn("skipping an invalid Lease", "error", err)
			continue
		}
		out = append(out, sighting{o.Metadata.Name, version, time.Duration(o.Spec.Seconds) * time.Second})
	}
	return out
}

// look lists the Leases and deletes what has expired: first Leases, then keys without one. It returns the time until
// the next look.
func (f *feed) look(ctx context.Context) (time.Duration, error) {
	c, held := f.c, f.held()
	sent := time.Now()
	objects, _, err := c.list(ctx, leases, c.selector(""))
	if err != nil {
		return lookEvery, err
	}
	listing := c.sightings(objects)
	expired := f.judge.saw(sent, time.Now(), listing)
	alive := map[string]bool{}
	for i := range objects {
		alive[objects[i].Metadata.Name] = true
	}
	for _, l := range expired {
		switch err := c.remove(ctx, leases, l.name, l.version); {
		case err == nil, isStatus(err, http.StatusNotFound):
			c.o.Log.Info("a lease has expired", "lease", l.name, "ttl", l.ttl)
			delete(alive, l.name)
		case isStatus(err, http.StatusConflict): // it was renewed in the last moment
		case !f.refused(err):
			return lookEvery, err
		}
	}
	held = slices.DeleteFunc(held, func(h holding) bool { return alive[c.leaseName(h.lease)] })
	for _, h := range held { // they were seen before the listing was asked for, and a Lease is older than its keys
		if err := c.reap(ctx, h.Entry); err != nil && !f.refused(err) {
			return lookEvery, err
		}
	}
	return interval(listing), nil
}

// refused reports whether this process lacks the right to delete what has expired. It logs that once a minute: others
// may have the right, and watches work without it.
func (f *feed) refused(err error) bool {
	if !errors.As(err, new(*Denied)) {
		return false
	}
	if time.Since(f.complained) > time.Minute {
		f.complained = time.Now()
		f.c.o.Log.Error("cannot delete an expired lease", "error", err)
	}
	return true
}
