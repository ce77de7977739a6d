package redisusers_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/catalog/redisusers"
	"grebe/embed/redisserver"
	"grebe/internal/redisconn/redistest"
)

// people is what both backends do.
type people interface {
	UserWithin(ctx context.Context, id string) (*grebev1.User, bool, error)
	ApplyWithin(ctx context.Context, from string, ops []catalog.Op) []catalog.Result
	AppendEventsWithin(ctx context.Context, id string, events []*grebev1.Event) (catalog.User, bool, int, error)
}

const maxHistory = 12

// backends are the catalog's own users, those in a server, and those in a cluster of three.
func backends(t *testing.T, f func(t *testing.T, p people)) {
	t.Run("log", func(t *testing.T) { f(t, newCatalog()) })
	t.Run("server", func(t *testing.T) { f(t, catalog.NewUsers(open(t, server(t).Addr), newCatalog())) })
	t.Run("cluster", func(t *testing.T) { f(t, catalog.NewUsers(open(t, cluster(t)...), newCatalog())) })
}

func newCatalog() *catalog.Catalog { return catalog.New(catalog.Options{MaxHistory: maxHistory}) }

var (
	nodes   []*redisserver.Server // of a cluster that the tests share
	failed  error
	started sync.Once
	spaces  atomic.Int64 // prefixes in use
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, s := range nodes {
		s.Stop()
	}
	os.Exit(code)
}

// cluster returns the addresses of two of its three nodes.
func cluster(t *testing.T) []string {
	t.Helper()
	started.Do(func() { nodes, failed = redisserver.StartCluster(3) })
	if errors.Is(failed, redisserver.ErrAbsent) {
		t.Skip(failed)
	}
	if failed != nil {
		t.Fatal(failed)
	}
	return []string{nodes[0].Addr, nodes[1].Addr}
}

func server(t *testing.T) *redisserver.Server {
	t.Helper()
	s, err := redisserver.Start("--appendonly", "yes")
	if errors.Is(err, redisserver.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func open(t *testing.T, addresses ...string) *redisusers.Store {
	t.Helper()
	s := redisusers.Open(redisusers.Config{Addresses: addresses, Prefix: fmt.Sprint("t", spaces.Add(1), ":")})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func event(id, item string, at int64) *grebev1.Event {
	return &grebev1.Event{Id: id, Item: item, Time: at}
}

// Users behave the same wherever they lie: random changes leave the same users as in a catalog, and say the same.
func TestUsersBehaveTheSame(t *testing.T) {
	backends(t, func(t *testing.T, p people) {
		want := newCatalog()
		r, ctx := rand.New(rand.NewPCG(4, 2)), t.Context()
		for step := range 400 {
			id := fmt.Sprint("u{", r.IntN(6), "}")
			op := catalog.Op{DeleteUser: id}
			switch r.IntN(8) {
			case 0:
			case 1, 2:
				u := &grebev1.User{Id: id, Text: proto.String(fmt.Sprint("text ", step))}
				for k := range r.IntN(2 * maxHistory) {
					u.Events = append(u.Events, event(fmt.Sprint(step, "/", k), fmt.Sprint("i", k), int64(k+1)))
				}
				op = catalog.Op{PutUser: u}
			default:
				var events []*grebev1.Event
				for range 1 + r.IntN(4) {
					events = append(events, event([]string{"", fmt.Sprint(r.IntN(30))}[r.IntN(2)], "i", int64(r.IntN(40))))
				}
				got, created, dropped, err := p.AppendEventsWithin(ctx, id, events)
				w, wasNew, gone, _ := want.AppendEvents(id, events)
				if err != nil || created != wasNew || dropped != gone || got.Duplicates != w.Duplicates ||
					!proto.Equal(got.User, w.User) {
					t.Fatalf("step %d: %v, created %v, %d dropped, %+v; want %v, %d, %+v", step, err, created, dropped, got, wasNew,
						gone, w)
				}
				continue
			}
			w := want.Apply([]catalog.Op{{PutUser: clone(op.PutUser), DeleteUser: op.DeleteUser}})[0]
			if got := p.ApplyWithin(ctx, "", []catalog.Op{op})[0]; got != w {
				t.Fatalf("step %d: %+v, want %+v", step, got, w)
			}
			u, ok, err := p.UserWithin(ctx, id)
			if known, has := want.User(id); err != nil || ok != has || ok && !proto.Equal(u, known) {
				t.Fatalf("step %d: %v, %v, %v; want %v", step, u, ok, err, known)
			}
		}
	})
}

func clone(u *grebev1.User) *grebev1.User {
	if u == nil {
		return nil
	}
	return proto.Clone(u).(*grebev1.User)
}

// Events that many callers append at the same time are all there, in the order of their times, and none twice. Versions
// grow.
func TestEventsAtTheSameTime(t *testing.T) {
	backends(t, func(t *testing.T, p people) {
		ctx := t.Context()
		var wg sync.WaitGroup
		for caller := range 4 {
			wg.Go(func() {
				last := uint64(0)
				for _, k := range rand.Perm(maxHistory - 1) { // all callers send the same ones
					u, _, _, err := p.AppendEventsWithin(ctx, "u", []*grebev1.Event{
						event(fmt.Sprint(k), fmt.Sprint("i", k), int64(k+1))})
					if err != nil || u.Version < last {
						t.Errorf("caller %d: %v, version %d after %d", caller, err, u.Version, last)
						return
					}
					last = u.Version
				}
			})
		}
		wg.Wait()
		u, _, err := p.UserWithin(ctx, "u")
		if err != nil || len(u.Events) != maxHistory-1 {
			t.Fatalf("%d events, %v", len(u.Events), err)
		}
		for k, e := range u.Events {
			if e.Item != fmt.Sprint("i", k) {
				t.Fatalf("event %d is of %s", k, e.Item)
			}
		}
	})
}

// A batch changes items and users, each user in its order. Versions grow also over a deletion.
func TestBatchesOfUsers(t *testing.T) {
	backends(t, func(t *testing.T, p people) {
		ctx := t.Context()
		put := func(text string) catalog.Op {
			return catalog.Op{PutUser: &grebev1.User{Id: "u", Text: proto.String(text)}}
		}
		more := catalog.Op{AppendEvents: &grebev1.AppendEventsRequest{Id: "v", Events: []*grebev1.Event{event("1", "i", 1)}}}
		res := p.ApplyWithin(ctx, "", []catalog.Op{put("a"), {PutItem: &grebev1.Item{Id: "i"}}, put("b"), put("b"),
			{DeleteUser: "u"}, put("c"),
			{PutUser: &grebev1.User{}}})
		want := []catalog.Result{{Created: true, Changed: true}, {Created: true, Changed: true}, {Changed: true}, {},
			{Changed: true},
			{Created: true, Changed: true}}
		if !slices.Equal(res[:6], want) || res[6].Err == nil {
			t.Errorf("%+v, want %+v and an error", res, want)
		}
		for i := range 2 {
			if r := p.ApplyWithin(ctx, "", []catalog.Op{more})[0]; r.Err != nil || r.Created != (i == 0) || r.Duplicates != i {
				t.Errorf("events: %+v", r)
			}
		}
		if u, ok, err := p.UserWithin(ctx, "u"); err != nil || !ok || u.GetText() != "c" {
			t.Errorf("%v, %v, %v", u, ok, err)
		}
	})
}

// A server that is away or silent is an error soon, and users are there again when it is back.
func TestOutages(t *testing.T) {
	s := server(t)
	users := catalog.NewUsers(open(t, s.Addr), catalog.New(catalog.Options{}))
	put := func() error {
		return users.ApplyWithin(t.Context(), "", []catalog.Op{
			{PutUser: &grebev1.User{Id: "u", Text: proto.String("a")}}})[0].Err
	}
	if err := put(); err != nil || users.Failing() != nil {
		t.Fatal(err, users.Failing())
	}
	back := func(what string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if u, ok, err := users.UserWithin(t.Context(), "u"); err == nil && ok && u.GetText() == "a" &&
				users.Failing() == nil {
				return
			}
		}
		t.Fatalf("after it was %s: %v", what, users.Failing())
	}
	s.Halt()
	if _, _, err := users.UserWithin(t.Context(), "u"); !errors.Is(err, catalog.ErrUsers) || users.Failing() == nil {
		t.Errorf("halted: %v, failing %v", err, users.Failing())
	}
	if err := put(); !errors.Is(err, catalog.ErrUsers) && !errors.Is(err, catalog.ErrUncertain) {
		t.Errorf("a write to a halted server: %v", err)
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	back("halted")
	if err := s.Freeze(true); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := users.UserWithin(short, "u"); !errors.Is(err, catalog.ErrUsers) {
		t.Errorf("frozen: %v", err)
	}
	if err := s.Freeze(false); err != nil {
		t.Fatal(err)
	}
	back("frozen")
}

// A caller whose deadline passes takes the users from nobody else.
func TestShortDeadlines(t *testing.T) {
	users := catalog.NewUsers(open(t, server(t).Addr), newCatalog())
	if r := users.ApplyWithin(t.Context(), "", []catalog.Op{{PutUser: &grebev1.User{Id: "u"}}})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	past, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for range 20 {
		_, _, early := users.UserWithin(past, "u")
		if _, ok, err := users.UserWithin(t.Context(), "u"); err != nil || !ok {
			t.Fatalf("after a read without time (%v): %v, %v", early, ok, err)
		}
	}
}

// A node of a cluster that is gone takes its own users with it, and no others.
func TestANodeIsGone(t *testing.T) {
	nodes, err := redisserver.StartCluster(3)
	if errors.Is(err, redisserver.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range nodes {
		defer s.Stop()
	}
	users := catalog.NewUsers(open(t, nodes[0].Addr, nodes[1].Addr), newCatalog())
	var gone, kept []string
	for i := range 60 {
		id := fmt.Sprint("u", i)
		if r := users.ApplyWithin(t.Context(), "", []catalog.Op{{PutUser: &grebev1.User{Id: id}}})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
		if nodes[2].Command("EXISTS", "{"+id+"}") == nil {
			gone = append(gone, id)
		} else {
			kept = append(kept, id)
		}
	}
	if len(gone) == 0 || len(kept) == 0 {
		t.Fatalf("%d users on the node, %d on others", len(gone), len(kept))
	}
	nodes[2].Halt()
	for i, id := range kept {
		if _, _, err := users.UserWithin(t.Context(), gone[i%len(gone)]); !errors.Is(err, catalog.ErrUsers) {
			t.Fatalf("a user on the node that is gone: %v", err)
		}
		if _, ok, err := users.UserWithin(t.Context(), id); err != nil || !ok {
			t.Fatalf("user %s on another node: %v, %v", id, ok, err)
		}
	}
}

// Malformed replies cost answers and connections. They used to end the process, in goroutines of the client.
func TestMalformedReplies(t *testing.T) {
	f := redistest.New(t)
	s := open(t, f.Addr().String())
	get := func(reply string) ([]byte, error) {
		f.Reply(reply)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		record, _, err := s.Get(ctx, "u")
		return record, err
	}
	const good = "*2\r\n$1\r\n7\r\n$1\r\nr\r\n"
	for _, reply := range redistest.Malformed {
		if record, err := get(reply); err == nil {
			t.Errorf("%.40q: %q", reply, record)
		}
		var record []byte
		var err error
		for range 400 { // while the store is not asked, and while the connection is that of the reply before
			if record, err = get(good); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if string(record) != "r" || err != nil {
			t.Fatalf("after %.40q: %q, %v", reply, record, err)
		}
	}
}
