package catalog

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/durable"
	"grebe/internal/durable/durabletest"
)

// sequences returns how many random sequences a power-loss test tries: few in a test run, GREBE_POWERLOSS of them in
// `make powerloss`.
func sequences(few uint64) uint64 {
	n, err := strconv.ParseUint(os.Getenv("GREBE_POWERLOSS"), 10, 64)
	if err != nil {
		return few
	}
	return n
}

// promises are what a catalog owes its callers. Entries are named by kind and id, and described by what they contain;
// an empty description is an entry that is not there.
type promises struct {
	mu       sync.Mutex
	sure     map[string]string
	underWay map[string]string // what a call that has not returned writes
	deleted  map[string]bool   // users whose deletion is pending for certain
	version  uint64
}

func (p *promises) copy() *promises {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &promises{sure: maps.Clone(p.sure), underWay: maps.Clone(p.underWay), deleted: maps.Clone(p.deleted), version: p.version}
}

const lossIDs = 8

// describe returns an entry as promises do.
func describe(c *Catalog, name string) string {
	if name[0] == 'i' {
		if it, ok := c.Item(name); ok {
			return it.Text
		}
		return ""
	}
	if u, ok := c.User(name); ok {
		return describeUser(u)
	}
	return ""
}

func describeUser(u *grebev1.User) string {
	text := "user " + u.GetText()
	for _, e := range u.Events {
		text += " " + e.Item
	}
	return text
}

// hold compares a catalog with what was promised. What is there then is certain.
func (p *promises) hold(t *testing.T, c *Catalog, what string) {
	t.Helper()
	for k := range lossIDs {
		for _, name := range []string{fmt.Sprint("i", k), fmt.Sprint("u", k)} {
			got := describe(c, name)
			trying, any := p.underWay[name]
			if got != p.sure[name] && !(any && got == trying) {
				t.Fatalf("%s: %s is %q, want %q (under way: %v %q)", what, name, got, p.sure[name], any, trying)
			}
			p.sure[name] = got
		}
	}
	pending := c.PendingDeletions()
	for id := range p.deleted {
		if !slices.Contains(pending, id) {
			t.Fatalf("%s: the deletion of %s is not pending: %q", what, id, pending)
		}
	}
	if v := c.Stats().Version; v < p.version {
		t.Fatalf("%s: version %d, and %d was acknowledged", what, v, p.version)
	}
	clear(p.underWay)
}

func lossCatalog(t *testing.T, d *durabletest.Disk, what string) *Catalog {
	t.Helper()
	c, err := Open("catalog", Options{disk: d.FS(), SweepDelay: time.Millisecond, TrackDeletions: true})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return c
}

// Items, users, events and batches: a kill, a power cut, and both in turn, at every change of a file or a folder. What a
// call acknowledged is there, what it deleted is not, and the deletion of a user is pending until it is done.
func TestCatalogSurvivesKillsAndPowerCuts(t *testing.T) {
	t.Parallel()
	for seed := range sequences(2) {
		r := rand.New(rand.NewPCG(seed, 41))
		d := durabletest.NewDisk()
		if err := d.FS().MkdirAll("catalog", 0o700); err != nil {
			t.Fatal(err)
		}
		if root, err := d.FS().OpenDir(""); err != nil || root.Sync() != nil {
			t.Fatal(err)
		}
		p := &promises{sure: map[string]string{}, underWay: map[string]string{}, deleted: map[string]bool{}}
		for life := range 4 {
			d, p = p.live(t, d, r, fmt.Sprintf("seed %d, life %d", seed, life))
		}
	}
}

func (p *promises) live(t *testing.T, d *durabletest.Disk, r *rand.Rand, what string) (*durabletest.Disk, *promises) {
	t.Helper()
	type moment struct {
		disk *durabletest.Disk
		p    *promises
		at   string
	}
	var mu sync.Mutex
	var moments []moment
	n, every := 0, 1+r.IntN(5)
	d.Before = func(kind durable.Kind, path string) error {
		mu.Lock()
		defer mu.Unlock()
		if n++; n%every == 0 {
			promised := p.copy() // before the disk: what is acknowledged meanwhile does not count
			moments = append(moments, moment{d.Kill(), promised, fmt.Sprintf("%s: before change %d, %s of %s", what, n, kind, path)})
		}
		return nil
	}
	c := lossCatalog(t, d, what)
	p.hold(t, c, what)
	for range 14 {
		p.step(t, c, r)
	}
	shut(t, c)
	mu.Lock()
	defer mu.Unlock()
	d.Before = nil
	for _, m := range moments {
		for _, how := range []*rand.Rand{nil, r} {
			c := lossCatalog(t, m.disk.Cut(how), m.at)
			m.p.copy().hold(t, c, m.at+": a power cut")
			shut(t, c)
		}
	}
	m := moments[r.IntN(len(moments))]
	if r.IntN(2) == 0 {
		return m.disk.Cut(r), m.p
	}
	return m.disk, m.p // killed
}

// step makes a few changes in one call and notes what it promises.
func (p *promises) step(t *testing.T, c *Catalog, r *rand.Rand) {
	t.Helper()
	if r.IntN(6) == 0 {
		if err := c.store.db.Flush(); err != nil {
			t.Fatal(err)
		}
		return
	}
	if r.IntN(4) == 0 {
		p.events(t, c, fmt.Sprint("u", r.IntN(lossIDs)), fmt.Sprint("e", r.IntN(1000)))
		return
	}
	var ops []Op
	after, gone := map[string]string{}, map[string]bool{}
	for range 1 + r.IntN(3) {
		item, user, text := fmt.Sprint("i", r.IntN(lossIDs)), fmt.Sprint("u", r.IntN(lossIDs)), fmt.Sprint("text ", r.IntN(1<<20))
		switch r.IntN(5) {
		case 0:
			ops, after[item] = append(ops, Op{DeleteItem: item}), ""
		case 1:
			_, there := c.User(user)
			if text, changed := after[user]; changed {
				there = text != ""
			}
			ops, after[user] = append(ops, Op{DeleteUser: user}), ""
			gone[user] = gone[user] || there
		case 2:
			u := &grebev1.User{Id: user, Text: &text}
			ops, after[user] = append(ops, Op{PutUser: u}), describeUser(u)
		default:
			ops, after[item] = append(ops, Op{PutItem: &grebev1.Item{Id: item, Text: &text}}), text
		}
	}
	p.mu.Lock()
	for name, text := range after {
		p.underWay[name] = text
	}
	p.mu.Unlock()
	for _, res := range c.Apply(ops) {
		if res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, text := range after {
		p.sure[name] = text
		delete(p.underWay, name)
	}
	for id, there := range gone {
		if there {
			p.deleted[id] = true
		}
	}
	p.version = c.Stats().Version
	for _, id := range slices.Sorted(maps.Keys(p.deleted)) {
		if r.IntN(4) == 0 {
			delete(p.deleted, id)
			c.DeletionDone(id, c.PendingDeletion(id))
		}
	}
}

func (p *promises) events(t *testing.T, c *Catalog, user, item string) {
	t.Helper()
	p.mu.Lock()
	before := p.sure[user]
	if before == "" {
		before = "user "
	}
	p.underWay[user] = before + " " + item
	p.mu.Unlock()
	if _, _, _, err := c.AppendEvents(user, []*grebev1.Event{{Item: item}}); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sure[user] = before + " " + item
	delete(p.underWay, user)
	p.version = c.Stats().Version
}
