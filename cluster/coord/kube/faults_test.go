package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grebe/cluster/coord"
	"grebe/cluster/coord/kube/kubetest"
)

// view follows a watch.
type view struct {
	mu      sync.Mutex
	entries map[string]coord.Entry
	counts  map[coord.Kind]int
}

func watch(t testing.TB, c coord.Coordinator, prefix string) *view {
	v := &view{entries: map[string]coord.Entry{}, counts: map[coord.Kind]int{}}
	events := c.Watch(t.Context(), prefix)
	go func() { // until the test's context ends
		for e := range events {
			v.mu.Lock()
			v.counts[e.Kind]++
			e.Apply(v.entries)
			v.mu.Unlock()
		}
	}()
	return v
}

func (v *view) count(k coord.Kind) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.counts[k]
}

// told returns how many events of each kind there were.
func (v *view) told() map[coord.Kind]int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.counts)
}

// String lists keys and values.
func (v *view) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []string
	for _, k := range slices.Sorted(maps.Keys(v.entries)) {
		out = append(out, k+"="+string(v.entries[k].Data))
	}
	return strings.Join(out, " ")
}

// shows waits in virtual time.
func (v *view) shows(t testing.TB, within time.Duration, want string) time.Duration {
	t.Helper()
	start := time.Now()
	for v.String() != want {
		if time.Since(start) > within {
			t.Fatalf("after %v the watch shows %q, want %q", within, v, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

func put(t testing.TB, c coord.Coordinator, key, data string) {
	t.Helper()
	e, err := c.Get(t.Context(), key)
	if err == nil {
		_, err = c.Swap(t.Context(), key, []byte(data), e.Version, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func drop(t testing.TB, c coord.Coordinator, key string) {
	t.Helper()
	e, err := c.Get(t.Context(), key)
	if err == nil {
		err = c.Delete(t.Context(), key, e.Version)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A watch gets no events for a minute while its connection is well. The next listing shows what it missed, and nobody
// was told that the API server is away.
func TestSilentWatch(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		c, _ := w.open(t)
		other, _ := w.open(t)
		put(t, other, "n/1", "a")
		put(t, other, "n/2", "a")
		v := watch(t, c, "n/")
		v.shows(t, time.Second, "n/1=a n/2=a")
		w.Mute(true)
		put(t, other, "n/1", "b")
		drop(t, other, "n/2")
		put(t, other, "n/3", "a")
		time.Sleep(30 * time.Second)
		if v.String() != "n/1=a n/2=a" {
			t.Fatalf("a silent watch shows %s", v)
		}
		v.shows(t, resync, "n/1=b n/3=a")
		drop(t, other, "n/3")
		v.shows(t, resync+time.Second, "n/1=b") // it is still silent
		w.Mute(false)
		put(t, other, "n/1", "c")
		v.shows(t, time.Second, "n/1=c")
		if v.count(coord.Lost) != 0 || v.count(coord.Listing) != 1 {
			t.Errorf("the reader was told %v", v.told())
		}
	})
}

// The API server never sends a deletion. The next listing finds it.
func TestMissedDeletion(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		c, _ := w.open(t)
		other, _ := w.open(t)
		put(t, other, "n/1", "a")
		put(t, other, "n/2", "a")
		v := watch(t, c, "n/")
		v.shows(t, time.Second, "n/1=a n/2=a")
		w.ForgetDeletions(1)
		drop(t, other, "n/1")
		put(t, other, "n/2", "b")
		v.shows(t, time.Second, "n/1=a n/2=b")
		took := v.shows(t, resync+5*time.Second, "n/2=b")
		t.Logf("found after %v", took)
	})
}

// Watches end for a minute, each as soon as it begins: in order, or abruptly.
func TestDroppedWatches(t *testing.T) {
	for _, abruptly := range []bool{false, true} {
		virtual(t, func(t *testing.T, w *world) {
			c, _ := w.open(t)
			other, _ := w.open(t)
			v := watch(t, c, "n/")
			put(t, other, "n/1", "0")
			v.shows(t, time.Second, "n/1=0")
			before := w.Requests()
			ends := time.Now().Add(time.Minute)
			for i := 1; time.Now().Before(ends); i++ {
				w.DropWatches(abruptly)
				time.Sleep(20 * time.Millisecond)
				if i%100 == 0 {
					put(t, other, "n/1", fmt.Sprint(i))
					v.shows(t, 3*time.Second, fmt.Sprint("n/1=", i))
				}
			}
			requests := w.Requests() - before
			t.Logf("abruptly %t: %d requests in a minute, %v", abruptly, requests, v.told())
			if requests > 400 {
				t.Errorf("%d requests in a minute: the waits between attempts do not grow", requests)
			}
			if !abruptly && v.count(coord.Lost) > 0 {
				t.Errorf("watches that ended in order were told as %v", v.told())
			}
			put(t, other, "n/1", "end")
			v.shows(t, 3*time.Second, "n/1=end")
		})
	}
}

// The history is compacted while a watch is being opened again: it begins with a listing.
func TestGone(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		c, _ := w.open(t)
		other, _ := w.open(t)
		put(t, other, "n/1", "a")
		v := watch(t, c, "n/")
		v.shows(t, time.Second, "n/1=a")
		w.Mute(true)
		drop(t, other, "n/1")
		put(t, other, "n/2", "a")
		w.Server.Compact()
		w.Mute(false)
		v.shows(t, time.Second, "n/2=a")
		if v.count(coord.Listing) != 2 {
			t.Errorf("after a gap the reader got %v", v.told())
		}
	})
}

// Announced processes and a watch, while the API server is away for a minute: killed, stopped or failing. The view
// stays, every call ends in time, and all are registered within 5 s after it is back.
func TestAway(t *testing.T) {
	for name, fault := range map[string]struct {
		down, up func(*world, []*kubetest.Link)
	}{
		"killed": {func(w *world, _ []*kubetest.Link) { w.net.Kill() }, func(w *world, _ []*kubetest.Link) { w.net.Start() }},
		"stopped": {
			func(_ *world, all []*kubetest.Link) { each(all, (*kubetest.Link).Stall) },
			func(_ *world, all []*kubetest.Link) { each(all, (*kubetest.Link).Resume) }},
		"failing": {
			func(w *world, _ []*kubetest.Link) { w.Fail(1 << 30); w.DropWatches(true) },
			func(w *world, _ []*kubetest.Link) { w.Fail(0) }},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, w *world) {
				var links []*kubetest.Link
				open := func() *Client {
					c, l := w.open(t)
					links = append(links, l)
					return c
				}
				for i := range 3 {
					announce(t, open(), fmt.Sprint("nodes/", i), 10*time.Second)
				}
				router := open()
				v := watch(t, router, "nodes/")
				const all = "nodes/0=up nodes/1=up nodes/2=up"
				v.shows(t, 5*time.Second, all)
				time.Sleep(7 * time.Second)

				fault.down(w, links)
				fell := time.Now()
				for v.count(coord.Lost) == 0 {
					if time.Since(fell) > 5*time.Second {
						t.Fatal("the watch does not notice")
					}
					time.Sleep(10 * time.Millisecond)
				}
				t.Logf("noticed after %v", time.Since(fell))
				began := time.Now()
				_, err := router.Get(t.Context(), "nodes/1")
				if took := time.Since(began); !errors.Is(err, coord.ErrUnavailable) || took > 3*time.Second {
					t.Errorf("a call meanwhile: %v after %v", err, took)
				}
				time.Sleep(time.Until(fell.Add(time.Minute)))
				if v.String() != all || v.count(coord.Lost) != 1 {
					t.Errorf("meanwhile the view is %q after %v", v, v.told())
				}

				fault.up(w, links)
				back := time.Now()
				for len(w.Names("leases")) < 3 || v.count(coord.Listing) < 2 {
					if time.Since(back) > 5*time.Second {
						t.Fatalf("leases %q, events %v", w.Names("leases"), v.told())
					}
					time.Sleep(10 * time.Millisecond)
				}
				for time.Since(back) < time.Minute { // old leases expire, and nothing with them
					if v.String() != all {
						t.Fatalf("%v after it was back the view is %q", time.Since(back), v)
					}
					time.Sleep(50 * time.Millisecond)
				}
				if got := w.Names("leases"); len(got) != 3 {
					t.Errorf("at last there are %d leases, want 3", len(got))
				}
			})
		})
	}
}

func each(all []*kubetest.Link, f func(*kubetest.Link)) {
	for _, l := range all {
		f(l)
	}
}

// announce keeps a key alive until the test ends.
func announce(t testing.TB, c coord.Coordinator, key string, ttl time.Duration) *coord.Announcement {
	t.Helper()
	a, err := coord.Announce(c, key, ttl, []byte("up"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// An API server with too much to do: calls wait as long as it says, and watches go on.
func TestThrottled(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		c, _ := w.open(t)
		v := watch(t, c, "n/")
		put(t, c, "n/1", "a")
		v.shows(t, time.Second, "n/1=a")
		w.Throttle(1, 1)
		began := time.Now()
		put(t, c, "n/1", "b")
		if took := time.Since(began); took < time.Second {
			t.Errorf("after 429 with Retry-After 1 the call took %v", took)
		}
		w.Throttle(1, 30)
		began = time.Now()
		_, err := c.Get(t.Context(), "n/1")
		want(t, err, "429")
		if took := time.Since(began); took > time.Second {
			t.Errorf("a call with 2 s waits %v for a server that says 30 s", took)
		}
		w.Throttle(1<<30, 1)
		time.Sleep(20 * time.Second)
		w.Throttle(0, 0)
		if v.count(coord.Lost) != 0 {
			t.Errorf("a busy API server counts as away: %v", v.told())
		}
		put(t, c, "n/1", "c")
		v.shows(t, time.Second, "n/1=c")
	})
}

// Nobody renews the Lease of a killed process; those who watch remove it, and what it had written late.
func TestKilledOwner(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		owner, _ := w.open(t)
		other, _ := w.open(t)
		v := watch(t, other, "nodes/")
		l, err := owner.Grant(t.Context(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := owner.Swap(t.Context(), "nodes/1", []byte("up"), 0, l); err != nil {
			t.Fatal(err)
		}
		v.shows(t, time.Second, "nodes/1=up")
		_ = owner.Close() // without its lease
		killed := time.Now()
		v.shows(t, 20*time.Second, "")
		if took := time.Since(killed); took < 7*time.Second || took > 16*time.Second {
			t.Errorf("the key vanished %v after its owner, whose lease was 10 s", took)
		}
		if got := w.Names("leases"); len(got) != 0 {
			t.Errorf("leases are left: %q", got)
		}
		// A write of the owner that arrives only now.
		if _, err := other.write(t.Context(), owner.configMap("nodes/1", []byte("late"), l.(*lease).id), 0); err != nil {
			t.Fatal(err)
		}
		v.shows(t, time.Second, "nodes/1=late")
		v.shows(t, 5*time.Second, "")
	})
}

// want checks that a call failed because the coordinator is unavailable, and that the error says why.
func want(t testing.TB, err error, says string) {
	t.Helper()
	if !errors.Is(err, coord.ErrUnavailable) || !strings.Contains(err.Error(), says) {
		t.Errorf("got error %v, want ErrUnavailable with %q", err, says)
	}
}

// A Lease that is renewed late, by a slow API server, is not taken away.
func TestSlowServer(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		c, _ := w.open(t)
		other, _ := w.open(t)
		announce(t, c, "nodes/1", 10*time.Second)
		v := watch(t, other, "nodes/")
		v.shows(t, 5*time.Second, "nodes/1=up")
		w.Slow(1500 * time.Millisecond)
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			if v.String() != "nodes/1=up" {
				t.Fatalf("the view is %q", v)
			}
		}
		if v.count(coord.Lost) != 0 {
			t.Errorf("a slow API server counts as away: %v", v.told())
		}
	})
}

// What an idle process costs the API server: requests per second, with three announced processes that watch.
func TestIdleRequests(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		for i := range 3 {
			c, _ := w.open(t)
			announce(t, c, fmt.Sprint("nodes/", i), 10*time.Second)
			for _, prefix := range []string{"nodes/", "placement/", "catalog/"} {
				watch(t, c, prefix)
			}
		}
		time.Sleep(10 * time.Second)
		before := w.Requests()
		time.Sleep(2 * time.Minute)
		rate := float64(w.Requests()-before) / 120 / 3
		t.Logf("%.2f requests per second and process", rate)
		if rate > 1.2 {
			t.Errorf("an idle process sends %.2f requests per second", rate)
		}
		if n := w.Count("watch configmaps"); n > 15 {
			t.Errorf("%d watches of three processes in two minutes", n)
		}
	})
}

// A client that is closed while the API server is stopped ends at once.
func TestCloseWhileStopped(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		c, l := w.open(t)
		v := watch(t, c, "")
		if _, err := c.Grant(context.Background(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		l.Stall()
		began := time.Now()
		if err := c.Close(); err != nil || time.Since(began) > time.Second {
			t.Errorf("closed with %v after %v; %v", err, time.Since(began), v.told())
		}
	})
}
