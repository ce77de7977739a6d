package catalog

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	grebev1 "grebe/api/grebe/v1"
	"grebe/prompt"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("GREBE_TEST_KILLED_WRITER"); dir != "" {
		writeUntilKilled(dir)
		return
	}
	// Every check opens and syncs files: a few tell as much, and the command line may ask for more.
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	if os.Getenv(failingDisk) != "" { // a store that failed is left as it is, with its goroutines
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, dir string, opt Options) *Catalog {
	t.Helper()
	c, err := Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func shut(t testing.TB, c *Catalog) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// model is the obviously right catalog.
type model struct {
	items map[string]*grebev1.Item
	users map[string]*grebev1.User
}

func (m *model) check(t interface{ Fatalf(string, ...any) }, c *Catalog) {
	s := c.Stats()
	if s.Items != len(m.items) || s.Users != len(m.users) {
		t.Fatalf("%d items and %d users, want %d and %d", s.Items, s.Users, len(m.items), len(m.users))
	}
	fresh := New(Options{})
	for id, want := range m.items {
		it, ok := c.Item(id)
		if !ok || !proto.Equal(Message(it), want) {
			t.Fatalf("item %q is %v, want %v", id, it, want)
		}
		if _, err := fresh.PutItem(want); err != nil {
			t.Fatalf("%v", err)
		}
	}
	if got := fresh.Stats().Digest; got != s.Digest {
		t.Fatalf("digest %s, want %s", s.Digest, got)
	}
	for id, want := range m.users {
		u, ok := c.User(id)
		if !ok || !proto.Equal(u, want) || (u.Tokens == nil) != (want.Tokens == nil) {
			t.Fatalf("user %q is %v, want %v", id, u, want)
		}
	}
}

const modelHistory = 8

// append is AppendEvents, said plainly.
func (m *model) append(id string, events []*grebev1.Event) {
	u := &grebev1.User{Id: id}
	if old := m.users[id]; old != nil {
		u = proto.Clone(old).(*grebev1.User)
		if old.Tokens != nil && u.Tokens == nil {
			u.Tokens = []int32{} // a clone loses it
		}
	}
	// An event without a time counts as of the time of the one before it.
	times := map[*grebev1.Event]int64{}
	last, late := int64(0), false
	for _, e := range u.Events {
		if e.Time != 0 {
			last = e.Time
		}
		times[e] = last
	}
	head, tail := len(u.History)-len(u.Events), len(u.History) >= len(u.Events) // the history ends with the events' items
	for i, e := range u.Events {
		tail = tail && u.History[head+i] == e.Item
	}
	for _, e := range events {
		late = late || e.Time != 0 && e.Time < last
		if e.Time != 0 {
			last = e.Time
		}
		times[e] = last
		if u.Events = append(u.Events, e); len(u.History) > 0 {
			u.History = append(u.History, e.Item)
		}
	}
	if late {
		for i := range u.Events { // sort by insertion
			for j := i; j > 0 && times[u.Events[j]] < times[u.Events[j-1]]; j-- {
				u.Events[j], u.Events[j-1] = u.Events[j-1], u.Events[j]
			}
		}
		for i, e := range u.Events {
			if tail && len(u.History) > 0 {
				u.History[head+i] = e.Item
			}
		}
	}
	if n := len(u.History); n > modelHistory {
		u.History = u.History[n-modelHistory*3/4:]
	}
	if n := len(u.Events); n > modelHistory {
		u.Events = u.Events[n-modelHistory*3/4:]
	}
	m.users[id] = u
}

var (
	genID    = rapid.SampledFrom([]string{"a", "b", "c", "d", "e/é", "\x00", strings.Repeat("long", 40)})
	genText  = rapid.StringN(0, 30, -1)
	genInts  = rapid.SliceOfN(rapid.Int32Min(0), 0, 5)
	genIDs   = rapid.SliceOfN(genID, 0, 12)
	genEvent = rapid.Custom(func(t *rapid.T) *grebev1.Event {
		e := &grebev1.Event{Item: genID.Draw(t, "item"),
			Time: rapid.OneOf(rapid.Int64(), rapid.Int64Range(0, 20)).Draw(t, "time"), Action: rapid.Int32().Draw(t, "action")}
		if f := rapid.MapOfN(genText, rapid.Float64(), 0, 3).Draw(t, "features"); len(f) > 0 {
			e.Features = f
		}
		return e
	})
	genItem = rapid.Custom(func(t *rapid.T) *grebev1.Item {
		m := &grebev1.Item{Id: genID.Draw(t, "id")}
		if s := genText.Draw(t, "text"); s != "" {
			m.Text = &s
		}
		if rapid.Bool().Draw(t, "numbers") {
			m.Tokens, m.Identifier, m.Codes = genInts.Draw(t, "tokens"), proto.Int32(rapid.Int32Min(0).Draw(t, "identifier")),
				genInts.Draw(t, "codes")
		}
		for name, values := range rapid.MapOfN(genText, rapid.SliceOfN(genText, 0, 3), 0, 3).Draw(t, "attributes") {
			if m.Attributes == nil {
				m.Attributes = map[string]*grebev1.Values{}
			}
			m.Attributes[name] = &grebev1.Values{Values: values}
		}
		return m
	})
	genUser = rapid.Custom(func(t *rapid.T) *grebev1.User {
		m := &grebev1.User{Id: genID.Draw(t, "id")}
		if rapid.Bool().Draw(t, "text") {
			m.Text = proto.String(genText.Draw(t, "text"))
		}
		if rapid.Bool().Draw(t, "tokens") {
			m.Tokens = genInts.Draw(t, "tokens")
		}
		if rapid.Bool().Draw(t, "history") {
			m.History = genIDs.Draw(t, "history")
		}
		if rapid.Bool().Draw(t, "events") {
			m.Events = rapid.SliceOfN(genEvent, 0, 12).Draw(t, "events")
		}
		return m
	})
)

// TestModel runs random operations, with the catalog closed and opened in between, against maps.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "grebe-catalog")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		m := &model{items: map[string]*grebev1.Item{}, users: map[string]*grebev1.User{}}
		var told []Change
		opt := Options{MaxHistory: modelHistory, OnChange: func(c Change) { told = append(told, c) }}
		c, err := Open(dir, opt)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { c.Close() }()
		version := uint64(0)
		// expect checks the feed: one change when something changed, with what was before and is now.
		expect := func(changed bool) {
			switch s := c.Stats(); {
			case !changed:
				if len(told) != 0 || s.Version != version {
					t.Fatalf("nothing changed, but version %d became %d and %d changes were told", version, s.Version, len(told))
				}
			case len(told) != 1 || told[0].Version != version+1 || s.Version != version+1:
				t.Fatalf("changes told: %+v; version %d, before %d", told, s.Version, version)
			}
			version, told = c.Stats().Version, nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"putItem": func(t *rapid.T) {
				it := genItem.Draw(t, "item")
				old := m.items[it.Id]
				created, err := c.PutItem(it)
				if err != nil || created != (old == nil) {
					t.Fatalf("created %v, %v", created, err)
				}
				m.items[it.Id] = it
				if len(told) == 1 && (told[0].OldItem == nil) != (old == nil) {
					t.Fatalf("told %+v of a change of %v", told[0], old)
				}
				expect(old == nil || string(itemRecord(old)) != string(itemRecord(it)))
			},
			"putUser": func(t *rapid.T) {
				u := genUser.Draw(t, "user")
				old := m.users[u.Id]
				created, err := c.PutUser(u)
				if err != nil || created != (old == nil) {
					t.Fatalf("created %v, %v", created, err)
				}
				trim(u, modelHistory, modelHistory)
				m.users[u.Id] = u
				version, told = c.Stats().Version, nil
			},
			"deleteItem": func(t *rapid.T) {
				id := genID.Draw(t, "id")
				_, was := m.items[id]
				if ok, err := c.DeleteItem(id); err != nil || ok != was {
					t.Fatalf("deleted %v, %v, want %v", ok, err, was)
				}
				delete(m.items, id)
				expect(was)
			},
			"deleteUser": func(t *rapid.T) {
				id := genID.Draw(t, "id")
				_, was := m.users[id]
				if ok, err := c.DeleteUser(id); err != nil || ok != was {
					t.Fatalf("deleted %v, %v, want %v", ok, err, was)
				}
				delete(m.users, id)
				expect(was)
			},
			"appendEvents": func(t *rapid.T) {
				id, events := genID.Draw(t, "id"), rapid.SliceOfN(genEvent, 1, 5).Draw(t, "events")
				_, was := m.users[id]
				u, created, _, err := c.AppendEvents(id, events)
				if err != nil || created == was {
					t.Fatalf("created %v, %v", created, err)
				}
				m.append(id, events)
				if !proto.Equal(u.User, m.users[id]) {
					t.Fatalf("returned %v, want %v", u.User, m.users[id])
				}
				expect(true)
			},
			"reopen": func(t *rapid.T) {
				before := c.Stats()
				if err := c.Close(); err != nil {
					t.Fatal(err)
				}
				if c, err = Open(dir, opt); err != nil {
					t.Fatal(err)
				}
				if after := c.Stats(); after.Version != before.Version || after.Digest != before.Digest {
					t.Fatalf("%+v became %+v", before, after)
				}
			},
			"": func(t *rapid.T) { m.check(t, c) },
		})
	})
}

// TestConcurrentWriters makes writers share rounds, and compares what is there with the feed.
func TestConcurrentWriters(t *testing.T) {
	for _, durable := range []bool{false, true} {
		t.Run(fmt.Sprintf("durable=%v", durable), func(t *testing.T) {
			last := map[string]Change{} // the feed is one at a time: no lock
			version := uint64(0)
			opt := Options{OnChange: func(c Change) {
				if c.Version != version+1 {
					t.Errorf("version %d after %d", c.Version, version)
				}
				version = c.Version
				if before := last[c.ID]; !reflect.DeepEqual(before.NewItem, c.OldItem) {
					t.Errorf("%s was %v, but then %v", c.ID, before.NewItem, c.OldItem)
				}
				last[c.ID] = c
			}}
			c := New(opt)
			dir := t.TempDir()
			if durable {
				c = open(t, dir, opt)
			}
			var wg sync.WaitGroup
			for k := range 16 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(1, uint64(k)))
					for i := range 40 {
						id := fmt.Sprint(r.IntN(10))
						text := fmt.Sprint(k, i)
						if r.IntN(4) == 0 {
							if _, err := c.DeleteItem(id); err != nil {
								t.Error(err)
							}
						} else if _, err := c.PutItem(&grebev1.Item{Id: id, Text: &text}); err != nil {
							t.Error(err)
						}
						if it, v, ok := c.Lookup(id); ok && (it.ID != id || v == 0) {
							t.Errorf("%v with version %d", it, v)
						}
					}
				})
			}
			wg.Wait()
			verify := func(c *Catalog) {
				t.Helper()
				for id, change := range last {
					it, v, ok := c.Lookup(id)
					if ok != (change.NewItem != nil) || ok && (it.Text != change.NewItem.Text || v != change.Version) {
						t.Errorf("%s is %v with version %d, the feed said %+v", id, it, v, change)
					}
				}
			}
			verify(c)
			shut(t, c)
			if durable {
				c = open(t, dir, opt)
				verify(c)
				shut(t, c)
			}
		})
	}
}

func TestOneProcessAtATime(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, Options{})
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
	shut(t, c)
	shut(t, c)
	if _, err := c.PutItem(&grebev1.Item{Id: "a"}); !errors.Is(err, ErrClosed) {
		t.Errorf("a put after Close: %v", err)
	}
	c = open(t, dir, Options{})
	shut(t, c)
}

func TestMemoryIsBounded(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, Options{MaxMemory: 2000})
	text := strings.Repeat("x", 700)
	for _, id := range []string{"a", "b"} {
		if _, err := c.PutItem(&grebev1.Item{Id: id, Text: &text}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.PutItem(&grebev1.Item{Id: "c", Text: &text}); !errors.Is(err, ErrFull) {
		t.Errorf("a third item: %v", err)
	}
	if _, err := c.PutItem(&grebev1.Item{Id: "b"}); err != nil {
		t.Errorf("a smaller item: %v", err)
	}
	if _, err := c.DeleteItem("a"); err != nil {
		t.Error(err)
	}
	if _, err := c.PutItem(&grebev1.Item{Id: "c", Text: &text}); err != nil {
		t.Errorf("after a deletion: %v", err)
	}
	shut(t, c)
	if _, err := Open(dir, Options{MaxMemory: 500}); !errors.Is(err, ErrFull) {
		t.Errorf("a smaller limit: %v", err)
	}
}

// heap returns what lives on the heap once no collection finds more to free: pools give up what they keep at the
// second, and what waits for a finalizer goes later still.
func heap() int64 {
	var m runtime.MemStats
	least := int64(math.MaxInt64)
	for rounds := 0; rounds < 4; rounds++ {
		runtime.GC()
		runtime.Gosched()
		runtime.ReadMemStats(&m)
		if now := int64(m.HeapAlloc); now < least-least/100 {
			least, rounds = now, 0
		}
	}
	return int64(m.HeapAlloc)
}

// TestMemoryEstimate holds the estimate against what the heap takes.
func TestMemoryEstimate(t *testing.T) {
	const n = 20_000
	for name, put := range map[string]func(*Catalog, int) error{
		"text": func(c *Catalog, i int) error {
			_, err := c.PutItem(&grebev1.Item{Id: fmt.Sprint("item-", i), Text: proto.String(strings.Repeat("w", 60))})
			return err
		},
		"tokens and attributes": func(c *Catalog, i int) error {
			_, err := c.PutItem(&grebev1.Item{Id: fmt.Sprint("item-", i), Tokens: make([]int32, 12),
				Attributes: map[string]*grebev1.Values{"category": {Values: []string{"toys"}}, "brand": {Values: []string{"b"}}}})
			return err
		},
		"history": func(c *Catalog, i int) error {
			_, err := c.PutUser(&grebev1.User{Id: fmt.Sprint("user-", i), History: slices.Repeat([]string{"item-1234"}, 20)})
			return err
		},
		"events": func(c *Catalog, i int) error {
			_, err := c.PutUser(&grebev1.User{Id: fmt.Sprint("user-", i),
				Events: slices.Repeat([]*grebev1.Event{{Item: "item-1234", Time: 1}}, 10)})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := heap()
			c := New(Options{})
			for i := range n {
				if err := put(c, i); err != nil {
					t.Fatal(err)
				}
			}
			taken := heap() - before
			ratio := float64(c.Stats().Memory) / float64(taken)
			t.Logf("%d bytes each, estimated %d", taken/n, c.Stats().Memory/n)
			if ratio < 0.75 || ratio > 1.35 {
				t.Errorf("estimated %d bytes, but they take %d", c.Stats().Memory, taken)
			}
			runtime.KeepAlive(c)
		})
	}
}

// holds reports which files under dir contain any of the needles.
func holds(t *testing.T, dir string, needles ...[]byte) []string {
	t.Helper()
	var out []string
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range needles {
			if bytes.Contains(data, n) {
				out = append(out, f.Name())
			}
		}
	}
	return out
}

// TestDeletedBytesLeaveTheFiles looks for ids and contents in every file, before and after a deletion.
// They are random, so that compression leaves them as they are.
func TestDeletedBytesLeaveTheFiles(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		dir := t.TempDir()
		c := open(t, dir, Options{SweepDelay: time.Millisecond})
		r := rand.New(rand.NewPCG(3, 4))
		secret := func() string {
			b := make([]byte, 24)
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			return hex.EncodeToString(b)
		}
		for i := range 300 {
			if _, err := c.PutItem(&grebev1.Item{Id: fmt.Sprint(i), Text: proto.String(secret())}); err != nil {
				t.Fatal(err)
			}
		}
		ids := []string{secret(), secret()}
		text, event := secret(), secret()
		needles := [][]byte{[]byte(ids[0]), []byte(ids[1]), []byte(text), []byte(event)}
		if _, err := c.PutItem(&grebev1.Item{Id: ids[0], Text: &text}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.PutUser(&grebev1.User{Id: ids[1], Text: &text}); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := c.AppendEvents(ids[1], []*grebev1.Event{{Item: event}}); err != nil {
			t.Fatal(err)
		}
		if flushed {
			if err := c.store.db.Compact(t.Context(), []byte("a"), []byte("z"), false); err != nil {
				t.Fatal(err)
			}
			shut(t, c)
			c = open(t, dir, Options{SweepDelay: time.Millisecond})
		}
		for _, n := range needles {
			if len(holds(t, dir, n)) == 0 {
				t.Fatalf("the search does not find what is there: %s", n)
			}
		}
		if _, err := c.DeleteItem(ids[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := c.DeleteUser(ids[1]); err != nil {
			t.Fatal(err)
		}
		waitSwept(t, c)
		began := time.Now()
		for files := holds(t, dir, needles...); len(files) > 0; files = holds(t, dir, needles...) {
			if time.Since(began) > 10*time.Second { // Pebble removes files that it needs no more on a goroutine of its own
				t.Errorf("flushed=%v: the bytes of what was deleted are still in %v", flushed, files)
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		shut(t, c)
		if files := holds(t, dir, needles...); len(files) > 0 {
			t.Errorf("flushed=%v: after closing, the bytes are in %v", flushed, files)
		}
	}
}

// waitSwept waits until the background sweep has taken its mark away.
func waitSwept(t *testing.T, c *Catalog) {
	t.Helper()
	for {
		marked, err := c.store.has(sweepKey)
		if err != nil {
			t.Fatal(err)
		}
		if !marked {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestSweepIsResumed deletes, closes before the sweep begins, and opens again.
func TestSweepIsResumed(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, Options{SweepDelay: time.Hour})
	secret := []byte("98c1f2d0a7b34e5f9c8d7e6f5a4b3c2d")
	if _, err := c.PutUser(&grebev1.User{Id: string(secret)}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteUser(string(secret)); err != nil {
		t.Fatal(err)
	}
	shut(t, c)
	if len(holds(t, dir, secret)) == 0 {
		t.Skip("closing removed the bytes already")
	}
	c = open(t, dir, Options{SweepDelay: time.Millisecond})
	waitSwept(t, c)
	if files := holds(t, dir, secret); len(files) > 0 {
		t.Errorf("the bytes are still in %v", files)
	}
	shut(t, c)
}

func TestMalformedRecords(t *testing.T) {
	whole := itemRecord(&grebev1.Item{Id: "a", Text: proto.String("t"), Tokens: []int32{1, 2},
		Attributes: map[string]*grebev1.Values{"x": {Values: []string{"y"}}}})
	user := userRecord(&grebev1.User{Id: "a", History: []string{"x"},
		Events: []*grebev1.Event{{Item: "i", Features: map[string]float64{"f": 1}}}})
	for i := range whole {
		if _, err := newItem(whole[:i]); err == nil {
			t.Errorf("the first %d bytes of an item pass", i)
		}
	}
	for i := range user {
		if _, err := newUser(user[:i]); err == nil {
			t.Errorf("the first %d bytes of a user pass", i)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 20_000 { // must not panic or allocate without bound
		b := slices.Clone(user)
		b[r.IntN(len(b))] = byte(r.Uint32())
		newUser(b)
		newItem(b)
		newEvents(b)
	}
}

func TestFeedShowsVersions(t *testing.T) {
	var told []Change
	c := New(Options{})
	c.Subscribe(func(ch Change) { told = append(told, ch) })
	text := "t"
	for _, op := range []Op{
		{PutItem: &grebev1.Item{Id: "a"}}, {PutItem: &grebev1.Item{Id: "a", Text: &text}},
		{PutItem: &grebev1.Item{Id: "a", Text: &text}},
		{DeleteItem: "a"}, {DeleteItem: "a"}, {PutUser: &grebev1.User{Id: "u"}}, {DeleteUser: "u"},
	} {
		if r := c.Apply([]Op{op})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	items := func(a, b *prompt.Item) [2]bool { return [2]bool{a != nil, b != nil} }
	want := [][2]bool{{false, true}, {true, true}, {true, false}, {false, false}, {false, false}}
	if len(told) != len(want) {
		t.Fatalf("told %+v", told)
	}
	for i, ch := range told {
		if ch.Version != uint64(i+1) || items(ch.OldItem, ch.NewItem) != want[i] {
			t.Errorf("change %d: %+v", i, ch)
		}
	}
	if told[3].NewUser.GetId() != "u" || told[4].OldUser.GetId() != "u" || told[4].NewUser != nil {
		t.Errorf("changes of a user: %+v", told[3:])
	}
}

// TestFailedDisk takes the store away: writes fail from then on, reads do not.
func TestFailedDisk(t *testing.T) {
	c := open(t, t.TempDir(), Options{})
	if _, err := c.PutItem(&grebev1.Item{Id: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := c.store.db.Close(); err != nil {
		t.Fatal(err)
	}
	defer c.store.lock.Close()
	for range 2 {
		if _, err := c.PutItem(&grebev1.Item{Id: "b"}); !errors.Is(err, ErrFailed) {
			t.Errorf("a put: %v", err)
		}
		if _, err := c.DeleteItem("a"); !errors.Is(err, ErrFailed) {
			t.Errorf("a deletion: %v", err)
		}
	}
	if _, ok := c.Item("a"); !ok {
		t.Error("what was there is gone")
	}
	if _, ok := c.Item("b"); ok {
		t.Error("what is not durable is there")
	}
	if err := c.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("Close: %v", err)
	}
	c.store.sweeper.Stop()
}

// TestSubscriberPanics: the call that it belongs to panics, the next ones work.
func TestSubscriberPanics(t *testing.T) {
	c := New(Options{OnChange: func(ch Change) {
		if ch.ID == "bad" {
			panic("on purpose")
		}
	}})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		c.PutItem(&grebev1.Item{Id: "bad"})
	}()
	if created, err := c.PutItem(&grebev1.Item{Id: "good"}); !created || err != nil {
		t.Errorf("the next put: %v, %v", created, err)
	}
}
