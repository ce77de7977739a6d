package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"grebe/cluster/coord"
	"grebe/cluster/coord/coordtest"
	"grebe/cluster/coord/embedded"
)

// backend is the suite's view of an etcd in this process.
type backend struct {
	s    *embedded.Server
	o    embedded.Options
	root string
}

func start(t testing.TB) *backend {
	t.Helper()
	b := &backend{o: embedded.Options{Dir: coordtest.Dir(t), Listen: coordtest.Address(),
		Election: 500 * time.Millisecond}}
	b.start(t)
	t.Cleanup(func() { b.s.Close() })
	return b
}

func (b *backend) start(t testing.TB) {
	t.Helper()
	s, err := embedded.Start(context.WithoutCancel(t.Context()), b.o)
	if err != nil {
		t.Fatal(err)
	}
	b.s, b.o.Listen = s, s.Addr()
}

func (b *backend) Open(t testing.TB) (coord.Coordinator, coordtest.Link) {
	t.Helper()
	p := coordtest.NewProxy(t, b.o.Listen)
	return open(t, b.root, p.Addr()), p
}

func open(t testing.TB, root string, endpoints ...string) *Client {
	t.Helper()
	c, err := Open(Options{Endpoints: endpoints, Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (b *backend) Restart(t testing.TB) {
	t.Helper()
	b.s.Close()
	b.start(t)
}

func (b *backend) Compact(t testing.TB) {
	t.Helper()
	c := open(t, "", b.o.Listen)
	r, err := c.c.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.c.Compact(t.Context(), r.Header.Revision, clientv3.WithCompactPhysical()); err != nil &&
		!strings.Contains(err.Error(), "has been compacted") {
		t.Fatal(err)
	}
}

func (b *backend) MinTTL() time.Duration { return 2 * time.Second }

func TestSuite(t *testing.T) {
	t.Parallel()
	shared := start(t)
	for i, c := range coordtest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			b := &backend{s: shared.s, o: shared.o}
			if c.Alone {
				b = start(t)
			}
			b.root = fmt.Sprintf("/grebe/%d/", i)
			c.Run(t, b)
		})
	}
}

func TestParseURL(t *testing.T) {
	for in, want := range map[string][]string{
		"etcd://a":                      {"a:2379"},
		"etcd://10.0.0.1:2379,10.0.0.2": {"10.0.0.1:2379", "10.0.0.2:2379"},
		"etcd://[::1]:23,[fe80::1]/":    {"[::1]:23", "[fe80::1]:2379"},
		"etcd://":                       nil,
		"etcd://a,,b":                   nil,
		"etcd://a:":                     nil,
		"http://a":                      nil,
		"":                              nil,
	} {
		got, err := ParseURL(in)
		if (err == nil) != (want != nil) || err == nil && !slices.Equal(got, want) {
			t.Errorf("%q gives %q, %v; want %q", in, got, err, want)
		}
	}
}

// Etcd comes back with an empty folder, and with fewer revisions than before: the watch shows what is there, not what
// was.
func TestDataLost(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := open(t, "/g/", b.o.Listen)
	for i := range 20 {
		if _, err := c.Swap(t.Context(), fmt.Sprint("n/", i), nil, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	v := &view{entries: map[string]coord.Entry{}, lost: make(chan time.Time, 100)}
	go v.follow(c.Watch(t.Context(), "n/"))
	within(t, 5*time.Second, "the watch shows 20 keys", func() bool { return len(v.versions()) == 20 })
	b.s.Close()
	b.o.Dir = coordtest.Dir(t)
	b.start(t)
	within(t, 10*time.Second, "a key is written", func() bool {
		_, err := c.Swap(t.Context(), "n/new", nil, 0, nil)
		return err == nil || errors.Is(err, coord.ErrConflict)
	})
	within(t, 10*time.Second, "the watch shows the new key alone", func() bool {
		now := v.versions()
		return len(now) == 1 && now["n/new"] > 0
	})
}

// One of two addresses does not answer.
func TestDeadEndpoint(t *testing.T) {
	t.Parallel()
	b := start(t)
	dead := coordtest.NewProxy(t, b.o.Listen)
	dead.Stall()
	c := open(t, "/g/", "127.0.0.1:1", dead.Addr(), b.o.Listen)
	for i := range 10 {
		began := time.Now()
		if _, err := c.Swap(t.Context(), fmt.Sprint(i), nil, 0, nil); err != nil {
			t.Errorf("swap %d: %v after %v", i, err, time.Since(began))
		}
	}
}
