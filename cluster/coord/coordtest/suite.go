// Package coordtest has the behaviour suite that every coordinator passes, and a coordinator in memory for tests in
// virtual time.
package coordtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"grebe/cluster/coord"
)

// Backend is a coordinator's server as the suite sees it. Each case gets an empty one.
type Backend interface {
	// Open returns a new client and its link, both of which end with the test.
	Open(t testing.TB) (coord.Coordinator, Link)
	// Restart kills the server and starts it again with its data.
	Restart(t testing.TB)
	// Compact forgets all history.
	Compact(t testing.TB)
	// MinTTL is the shortest lease.
	MinTTL() time.Duration
}

// Link is a client's connection. While it is stalled nothing passes and nothing fails, as if one side were stopped.
type Link interface {
	Stall()
	Resume()
}

// Case is one behaviour.
type Case struct {
	Name  string
	Alone bool // it restarts the server: nothing else may run on it meanwhile
	Run   func(t *testing.T, b Backend)
}

// Cases returns the suite.
func Cases() []Case {
	return []Case{
		{"versions", false, versions},
		{"list", false, list},
		{"values", false, values},
		{"swap race", false, swapRace},
		{"watch", false, watchChanges},
		{"watch through compaction", false, watchCompaction},
		{"watch through restart", true, watchRestart},
		{"watch slowly", false, watchSlowly},
		{"watch random", false, watchRandom},
		{"stalled calls", false, stalledCalls},
		{"ended contexts", false, endedContexts},
		{"lease is kept", false, leaseKept},
		{"lease of a paused owner", false, leasePaused},
		{"lease closed", false, leaseClosed},
		{"lease detached", false, leaseDetached},
		{"announce", false, announce},
		{"announce after a pause", false, announcePaused},
		{"announce through restart", true, announceRestart},
	}
}

func get(t testing.TB, c coord.Coordinator, key string) coord.Entry {
	t.Helper()
	e, err := c.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if e.Key != key {
		t.Fatalf("asked for %s, got %s", key, e.Key)
	}
	return e
}

func swap(t testing.TB, c coord.Coordinator, key, data string, expected int64, lease coord.Lease) int64 {
	t.Helper()
	v, err := c.Swap(t.Context(), key, []byte(data), expected, lease)
	if err != nil {
		t.Fatal(err)
	}
	if v == 0 || v == expected {
		t.Fatalf("%s: version %d after %d", key, v, expected)
	}
	return v
}

func want(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

// eventually tries until ok, and reports how long it took.
func eventually(t testing.TB, within time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > within {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

func versions(t *testing.T, b Backend) {
	c, _ := b.Open(t)
	if e := get(t, c, "a"); e.Version != 0 || e.Data != nil {
		t.Fatalf("an absent key has %+v", e)
	}
	_, err := c.Swap(t.Context(), "a", []byte("x"), 7, nil)
	want(t, err, coord.ErrConflict)
	want(t, c.Delete(t.Context(), "a", 7), coord.ErrConflict)
	v1 := swap(t, c, "a", "1", 0, nil)
	_, err = c.Swap(t.Context(), "a", []byte("x"), 0, nil)
	want(t, err, coord.ErrConflict)
	v2 := swap(t, c, "a", "2", v1, nil)
	if e := get(t, c, "a"); e.Version != v2 || string(e.Data) != "2" {
		t.Fatalf("wrote 2 as version %d, got %q as version %d", v2, e.Data, e.Version)
	}
	_, err = c.Swap(t.Context(), "a", []byte("x"), v1, nil)
	want(t, err, coord.ErrConflict)
	want(t, c.Delete(t.Context(), "a", v1), coord.ErrConflict)
	if err := c.Delete(t.Context(), "a", v2); err != nil {
		t.Fatal(err)
	}
	want(t, c.Delete(t.Context(), "a", v2), coord.ErrConflict)
	v3 := swap(t, c, "a", "1", 0, nil)
	if v3 == v1 || v3 == v2 {
		t.Fatalf("a key that was deleted and created again has version %d again", v3)
	}
	_, err = c.Swap(t.Context(), "a", []byte("x"), v1, nil)
	want(t, err, coord.ErrConflict)
}

func list(t *testing.T, b Backend) {
	c, _ := b.Open(t)
	for _, k := range []string{"b/2", "a/1", "b/1", "b0", "b/1/x"} {
		swap(t, c, k, k, 0, nil)
	}
	for prefix, keys := range map[string][]string{
		"":    {"a/1", "b/1", "b/1/x", "b/2", "b0"},
		"b/":  {"b/1", "b/1/x", "b/2"},
		"b/1": {"b/1", "b/1/x"},
		"c":   nil,
	} {
		entries, err := c.List(t.Context(), prefix)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Key)
			if string(e.Data) != e.Key || e.Version == 0 {
				t.Errorf("listed %+v", e)
			}
		}
		if !slices.Equal(got, keys) {
			t.Errorf("listing %q gives %q, want %q", prefix, got, keys)
		}
	}
}

func values(t *testing.T, b Backend) {
	c, _ := b.Open(t)
	all := make([]byte, coord.MaxData)
	for i := range all {
		all[i] = byte(i)
	}
	swap(t, c, "large", string(all), 0, nil)
	if e := get(t, c, "large"); string(e.Data) != string(all) {
		t.Errorf("a value of %d bytes comes back as %d others", len(all), len(e.Data))
	}
	swap(t, c, "empty", "", 0, nil)
	if e := get(t, c, "empty"); e.Version == 0 || len(e.Data) != 0 {
		t.Errorf("an empty value comes back as %+v", e)
	}
	for key, data := range map[string][]byte{"larger": make([]byte, coord.MaxData+1), "": nil, "a b": nil, "ä": nil} {
		if _, err := c.Swap(t.Context(), key, data, 0, nil); err == nil || errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("%q with %d bytes: %v", key, len(data), err)
		}
	}
}

// Four clients count to 15 each: every number is written once.
func swapRace(t *testing.T, b Backend) {
	const clients, each = 4, 15
	var wg sync.WaitGroup
	for range clients {
		c, _ := b.Open(t)
		wg.Go(func() {
			for n := 0; n < each; {
				e, err := c.Get(t.Context(), "counter")
				if err != nil {
					t.Error(err)
					return
				}
				count, _ := strconv.Atoi(string(e.Data))
				switch _, err := c.Swap(t.Context(), "counter", []byte(strconv.Itoa(count+1)), e.Version, nil); {
				case err == nil:
					n++
				case !errors.Is(err, coord.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	c, _ := b.Open(t)
	if e := get(t, c, "counter"); string(e.Data) != strconv.Itoa(clients*each) {
		t.Errorf("%d swaps succeeded, the counter is %s", clients*each, e.Data)
	}
}

// view follows a watch.
type view struct {
	t       testing.TB
	mu      sync.Mutex
	entries map[string]coord.Entry
	counts  map[coord.Kind]int
	began   bool
}

func follow(t testing.TB, c coord.Coordinator, prefix string) *view {
	v := &view{t: t, entries: map[string]coord.Entry{}, counts: map[coord.Kind]int{}}
	events := c.Watch(t.Context(), prefix)
	go func() { // until the test's context ends, or the client is closed
		for e := range events {
			v.apply(e)
		}
	}()
	return v
}

func (v *view) apply(e coord.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.counts[e.Kind]++
	if e.Kind == coord.Changes && !v.began {
		v.t.Error("changes before the first listing")
	}
	v.began = v.began || e.Kind == coord.Listing
	e.Apply(v.entries)
}

func (v *view) count(k coord.Kind) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.counts[k]
}

// shows waits until the view has these values, "key=data" each.
func (v *view) shows(within time.Duration, values ...string) time.Duration {
	v.t.Helper()
	start := time.Now()
	for {
		got := v.values()
		if slices.Equal(got, values) {
			return time.Since(start)
		}
		if time.Since(start) > within {
			v.t.Fatalf("after %v the watch shows %q, want %q", within, got, values)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (v *view) values() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := []string{}
	for _, k := range slices.Sorted(maps.Keys(v.entries)) {
		out = append(out, k+"="+string(v.entries[k].Data))
	}
	return out
}

func watchChanges(t *testing.T, b Backend) {
	c, _ := b.Open(t)
	other, _ := b.Open(t)
	v1 := swap(t, other, "n/1", "a", 0, nil)
	swap(t, other, "m/1", "x", 0, nil)
	v := follow(t, c, "n/")
	v.shows(time.Second, "n/1=a")
	swap(t, other, "n/2", "b", 0, nil)
	v1 = swap(t, other, "n/1", "c", v1, nil)
	swap(t, other, "n0", "x", 0, nil)
	v.shows(time.Second, "n/1=c", "n/2=b")
	if err := other.Delete(t.Context(), "n/1", v1); err != nil {
		t.Fatal(err)
	}
	v.shows(time.Second, "n/2=b")
	e := get(t, c, "n/2")
	v.mu.Lock()
	got := v.entries["n/2"]
	v.mu.Unlock()
	if got.Version != e.Version || got.Key != e.Key {
		t.Errorf("the watch has %+v, Get has %+v", got, e)
	}
	if v.count(coord.Listing) != 1 || v.count(coord.Lost) != 0 {
		t.Errorf("an undisturbed watch has %v", v.counts)
	}
}

// A watch is cut off. Meanwhile keys change, one is deleted, and the history is compacted away.
func watchCompaction(t *testing.T, b Backend) {
	c, link := b.Open(t)
	other, _ := b.Open(t)
	kept := swap(t, other, "n/kept", "1", 0, nil)
	gone := swap(t, other, "n/gone", "1", 0, nil)
	v := follow(t, c, "n/")
	v.shows(time.Second, "n/gone=1", "n/kept=1")
	link.Stall()
	if err := other.Delete(t.Context(), "n/gone", gone); err != nil {
		t.Fatal(err)
	}
	swap(t, other, "n/kept", "2", kept, nil)
	eventually(t, 6*time.Second, "a watch that is cut off reports Lost", func() bool { return v.count(coord.Lost) == 1 })
	b.Compact(t)
	link.Resume()
	v.shows(5*time.Second, "n/kept=2")
	if v.count(coord.Listing) < 2 {
		t.Errorf("no second listing after a gap: %v", v.counts)
	}
	swap(t, other, "n/new", "1", 0, nil)
	v.shows(time.Second, "n/kept=2", "n/new=1")
}

func watchRestart(t *testing.T, b Backend) {
	c, link := b.Open(t)
	other, _ := b.Open(t)
	gone := swap(t, other, "n/gone", "1", 0, nil)
	v := follow(t, c, "n/")
	v.shows(time.Second, "n/gone=1")
	link.Stall()
	b.Restart(t)
	eventually(t, 10*time.Second, "the key is deleted after the restart", func() bool {
		return other.Delete(t.Context(), "n/gone", gone) == nil
	})
	link.Resume()
	v.shows(5 * time.Second)
	b.Restart(t)
	eventually(t, 10*time.Second, "a key is written after the second restart", func() bool {
		_, err := other.Swap(t.Context(), "n/new", []byte("1"), 0, nil)
		return err == nil || errors.Is(err, coord.ErrConflict)
	})
	v.shows(5*time.Second, "n/new=1")
}

// A reader that takes one event a second sees the last value of every key.
func watchSlowly(t *testing.T, b Backend) {
	c, _ := b.Open(t)
	ctx, cancel := context.WithCancel(t.Context())
	events := c.Watch(ctx, "n/")
	entries := map[string]coord.Entry{}
	(<-events).Apply(entries)
	for i := range 3 {
		key, version := fmt.Sprint("n/", i), int64(0)
		for n := range 40 {
			version = swap(t, c, key, strconv.Itoa(n), version, nil)
		}
	}
	taken := 0
	for len(entries) < 3 || string(entries["n/2"].Data) != "39" {
		(<-events).Apply(entries)
		taken++
		time.Sleep(time.Second / 10)
	}
	for key, e := range entries {
		if string(e.Data) != "39" {
			t.Errorf("%s ends as %s", key, e.Data)
		}
	}
	if taken > 30 {
		t.Errorf("120 changes reached a slow reader as %d events", taken)
	}
	cancel()
	for range events { // it is closed
	}
}

// Random changes, cuts and compactions: whatever was missed, each watch ends with what List gives.
func watchRandom(t *testing.T, b Backend) {
	rng := rand.New(rand.NewPCG(1, 2))
	writer, _ := b.Open(t)
	var views []*view
	var links []Link
	for range 3 {
		c, link := b.Open(t)
		views, links = append(views, follow(t, c, "n/")), append(links, link)
	}
	for range 100 {
		key := fmt.Sprint("n/", rng.IntN(5))
		e := get(t, writer, key)
		switch {
		case e.Version != 0 && rng.IntN(3) == 0:
			if err := writer.Delete(t.Context(), key, e.Version); err != nil {
				t.Fatal(err)
			}
		default:
			swap(t, writer, key, strconv.Itoa(rng.IntN(1000)), e.Version, nil)
		}
		switch rng.IntN(20) {
		case 0:
			links[rng.IntN(3)].Stall()
		case 1:
			links[rng.IntN(3)].Resume()
		case 2:
			b.Compact(t)
		case 3:
			time.Sleep(20 * time.Millisecond)
		}
	}
	for _, l := range links {
		l.Resume()
	}
	entries, err := writer.List(t.Context(), "n/")
	if err != nil {
		t.Fatal(err)
	}
	final := []string{}
	for _, e := range entries {
		final = append(final, e.Key+"="+string(e.Data))
	}
	for _, v := range views {
		v.shows(6*time.Second, final...)
	}
}

// A coordinator that is stopped, not dead: every call ends in time.
func stalledCalls(t *testing.T, b Backend) {
	c, link := b.Open(t)
	version := swap(t, c, "a", "1", 0, nil)
	link.Stall()
	calls := map[string]func(context.Context) error{
		"get":    func(ctx context.Context) error { _, err := c.Get(ctx, "a"); return err },
		"list":   func(ctx context.Context) error { _, err := c.List(ctx, ""); return err },
		"swap":   func(ctx context.Context) error { _, err := c.Swap(ctx, "b", nil, 0, nil); return err },
		"delete": func(ctx context.Context) error { return c.Delete(ctx, "c", version) },
		"grant":  func(ctx context.Context) error { _, err := c.Grant(ctx, b.MinTTL()); return err },
	}
	var wg sync.WaitGroup
	for name, call := range calls {
		for _, limit := range []time.Duration{100 * time.Millisecond, time.Minute} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				start := time.Now()
				if err := call(ctx); !errors.Is(err, coord.ErrUnavailable) {
					t.Errorf("%s without an answer: %v", name, err)
				}
				if took := time.Since(start); took > min(limit, 3*time.Second)+time.Second {
					t.Errorf("%s without an answer and %v to go took %v", name, limit, took)
				}
			})
		}
	}
	wg.Wait()
	link.Resume()
	eventually(t, 5*time.Second, "calls are answered again", func() bool {
		_, err := c.Get(t.Context(), "a")
		return err == nil
	})
}

func endedContexts(t *testing.T, b Backend) {
	c, _ := b.Open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Get(ctx, "a")
	want(t, err, coord.ErrUnavailable)
	want(t, err, context.Canceled)
	for range c.Watch(ctx, "a") { // it is closed, after a listing at most
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = c.Get(t.Context(), "a")
	want(t, err, coord.ErrUnavailable)
	for range c.Watch(t.Context(), "a") {
	}
}

func grantLease(t testing.TB, b Backend, c coord.Coordinator) coord.Lease {
	t.Helper()
	l, err := c.Grant(t.Context(), b.MinTTL())
	if err != nil {
		t.Fatal(err)
	}
	if l.TTL() < b.MinTTL() {
		t.Fatalf("asked for %v, got %v", b.MinTTL(), l.TTL())
	}
	return l
}

func leaseKept(t *testing.T, b Backend) {
	c, _ := b.Open(t)
	l := grantLease(t, b, c)
	version := swap(t, c, "a", "1", 0, l)
	for range 5 {
		time.Sleep(l.TTL() / 2)
		if e := get(t, c, "a"); e.Version != version {
			t.Fatalf("a key whose lease is kept has version %d, had %d", e.Version, version)
		}
	}
	select {
	case <-l.Lost():
		t.Error("a lease that is kept is lost")
	default:
	}
}

// The owner is paused for longer than its lease: the key vanishes, the owner notices by itself, and the lease stays
// lost.
func leasePaused(t *testing.T, b Backend) {
	owner, link := b.Open(t)
	other, _ := b.Open(t)
	v := follow(t, other, "a")
	l := grantLease(t, b, owner)
	swap(t, owner, "a", "1", 0, l)
	v.shows(time.Second, "a=1")
	link.Stall()
	start := time.Now()
	select {
	case <-l.Lost():
		if took := time.Since(start); took > l.TTL()+time.Second/2 {
			t.Errorf("the owner noticed after %v, its lease is %v", took, l.TTL())
		}
	case <-time.After(l.TTL() + 5*time.Second):
		t.Fatal("the owner does not notice that its lease is lost")
	}
	v.shows(l.TTL() + 3*time.Second)
	link.Resume()
	time.Sleep(l.TTL())
	if e := get(t, other, "a"); e.Version != 0 {
		t.Errorf("a lost lease came back with %q", e.Data)
	}
	eventually(t, 3*time.Second, "a swap under a lost lease is refused", func() bool {
		_, err := owner.Swap(t.Context(), "a", []byte("2"), 0, l)
		return errors.Is(err, coord.ErrLeaseLost)
	})
	again := grantLease(t, b, owner)
	swap(t, owner, "a", "3", 0, again)
	v.shows(time.Second, "a=3")
	if err := l.Close(t.Context()); err != nil {
		t.Errorf("close a lost lease: %v", err)
	}
	v.shows(time.Second, "a=3")
}

func leaseClosed(t *testing.T, b Backend) {
	c, _ := b.Open(t)
	l := grantLease(t, b, c)
	swap(t, c, "a", "1", 0, l)
	swap(t, c, "b", "1", 0, l)
	swap(t, c, "c", "1", 0, nil)
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.Lost():
	default:
		t.Error("a closed lease is not lost")
	}
	for key, there := range map[string]bool{"a": false, "b": false, "c": true} {
		if e := get(t, c, key); e.Version != 0 != there {
			t.Errorf("%s after the lease was closed: %+v", key, e)
		}
	}
	_, err := c.Swap(t.Context(), "a", nil, 0, l)
	want(t, err, coord.ErrLeaseLost)
}

func leaseDetached(t *testing.T, b Backend) {
	c, _ := b.Open(t)
	l := grantLease(t, b, c)
	v := swap(t, c, "a", "1", 0, l)
	swap(t, c, "a", "2", v, nil)
	v = swap(t, c, "b", "1", 0, nil)
	swap(t, c, "b", "2", v, l)
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := get(t, c, "a"); string(e.Data) != "2" {
		t.Errorf("a key that was written without a lease ended with its earlier lease: %+v", e)
	}
	if e := get(t, c, "b"); e.Version != 0 {
		t.Errorf("a key that was written with a lease outlived it: %+v", e)
	}
}

func announced(t testing.TB, b Backend, c coord.Coordinator, data string) *coord.Announcement {
	t.Helper()
	a, err := coord.Announce(c, "n/1", b.MinTTL(), []byte(data), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func announce(t *testing.T, b Backend) {
	c, _ := b.Open(t)
	other, _ := b.Open(t)
	v := follow(t, other, "n/")
	a := announced(t, b, c, "boot1")
	v.shows(2*time.Second, "n/1=boot1")
	if err := a.Set([]byte("boot1 draining")); err != nil {
		t.Fatal(err)
	}
	v.shows(2*time.Second, "n/1=boot1 draining")
	if err := other.Delete(t.Context(), "n/1", get(t, other, "n/1").Version); err != nil {
		t.Fatal(err)
	}
	v.shows(b.MinTTL()+2*time.Second, "n/1=boot1 draining")

	second := announced(t, b, other, "boot2")
	v.shows(2*time.Second, "n/1=boot2")
	select {
	case <-a.Done():
		want(t, a.Err(), coord.ErrReplaced)
	case <-time.After(b.MinTTL() + 2*time.Second):
		t.Fatal("the first process does not notice that it was replaced")
	}
	v.shows(time.Second, "n/1=boot2")
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	v.shows(time.Second)
}

// The whole process is paused until its lease is gone: it registers again within 5 s after it is back.
func announcePaused(t *testing.T, b Backend) {
	c, link := b.Open(t)
	other, _ := b.Open(t)
	v := follow(t, other, "n/")
	announced(t, b, c, "boot1")
	v.shows(2*time.Second, "n/1=boot1")
	link.Stall()
	v.shows(b.MinTTL() + 4*time.Second)
	link.Resume()
	v.shows(5*time.Second, "n/1=boot1")
}

func announceRestart(t *testing.T, b Backend) {
	c, _ := b.Open(t)
	other, _ := b.Open(t)
	announced(t, b, c, "boot1")
	eventually(t, 2*time.Second, "it is announced", func() bool { return get(t, other, "n/1").Version != 0 })
	b.Restart(t)
	eventually(t, 5*time.Second, "it is announced after a restart", func() bool {
		e, err := other.Get(t.Context(), "n/1")
		return err == nil && string(e.Data) == "boot1"
	})
	time.Sleep(2 * b.MinTTL())
	if e := get(t, other, "n/1"); string(e.Data) != "boot1" {
		t.Errorf("two leases after the restart: %+v", e)
	}
}
