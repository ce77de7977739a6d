package catalog

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/durable"
	"grebe/internal/durable/durabletest"
)

// promises are what a catalog owes its callers. Entries are named by kind and id, and described by what they contain;
// an empty description is an entry that is not there.
type promises struct {
	mu       sync.Mutex
	sure     map[string]string
	underWay map[string]string // what a call that has not returned writes
	deleted  map[string]bool   // users whose deletion is pending for certain
	version  uint64
}

// Copy implements durabletest.Lives.
func (p *promises) Copy() *promises {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &promises{sure: maps.Clone(p.sure), underWay: maps.Clone(p.underWay), deleted: maps.Clone(p.deleted),
		version: p.version}
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
	return sweepingCatalog(t, d, time.Millisecond, what)
}

func sweepingCatalog(t *testing.T, d *durabletest.Disk, delay time.Duration, what string) *Catalog {
	t.Helper()
	c, err := Open("catalog", Options{disk: d.FS(), SweepDelay: delay, TrackDeletions: true})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return c
}

func newPromises() *promises {
	return &promises{sure: map[string]string{}, underWay: map[string]string{}, deleted: map[string]bool{}}
}

// check opens a catalog, compares it with what was promised and closes it.
func check(t *testing.T) func(d *durabletest.Disk, p *promises, what string) {
	return func(d *durabletest.Disk, p *promises, what string) {
		t.Helper()
		c := lossCatalog(t, d, what)
		p.hold(t, c, what)
		shut(t, c)
	}
}

// Items, users, events and batches: a kill, a power cut, and both in turn, at every change of a file or a folder,
// right after a sync that fails too. What a call acknowledged is there, what it deleted is not, and the deletion of a
// user is pending until it is done.
func TestCatalogSurvivesKillsAndPowerCuts(t *testing.T) {
	t.Parallel()
	n, campaign := durabletest.Sequences(2)
	tried := 0
	for seed := range n {
		r := rand.New(rand.NewPCG(seed, 41))
		d, p := durabletest.NewDiskWith("catalog"), newPromises()
		for life := range 4 {
			l := &durabletest.Lives[*promises]{Check: check(t), Every: 1 + r.IntN(5)}
			if campaign && seed == 0 {
				l.Every = 1
			}
			l.Use = func(d *durabletest.Disk, p *promises, what string) {
				c := lossCatalog(t, d, what)
				p.hold(t, c, what)
				for range 14 {
					p.step(t, c, r)
				}
				shut(t, c)
			}
			d, p = l.Run(d, p, r, fmt.Sprintf("seed %d, life %d", seed, life))
			tried += l.Tried()
		}
	}
	t.Logf("%d sequences: opened %d times after a kill or a power cut", n, tried)
}

// failingDisk is set in the process whose disk fails.
const failingDisk = "GREBE_TEST_FAILING_DISK"

// A sync that fails, of the log or of any other file, is an error of the call that waits for it, or costs nothing.
// The catalog then takes no more writes. The next process loses nothing that was acknowledged, and what it shows
// survives a power cut.
func TestCatalogSurvivesFailedSyncs(t *testing.T) {
	t.Parallel()
	if os.Getenv(failingDisk) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCatalogSurvivesFailedSyncs$")
		cmd.Env = append(os.Environ(), failingDisk+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	logs := 0
	for at := 1; ; at++ {
		d, p, r := durabletest.NewDiskWith("catalog"), newPromises(), rand.New(rand.NewPCG(1, 42))
		c := sweepingCatalog(t, d, time.Hour, "new") // closed only if its disk does not fail
		var mu sync.Mutex
		syncs, failed, over := 0, "", false
		d.Before = func(kind durable.Kind, path string) error {
			mu.Lock()
			defer mu.Unlock()
			if kind != durable.OpSync || over {
				return nil
			}
			if syncs++; syncs != at {
				return nil
			}
			failed = path
			return syscall.EIO
		}
		var refused error
		for range 12 {
			if refused = p.try(c, r); refused != nil {
				break
			}
		}
		mu.Lock()
		path := failed
		over = true
		mu.Unlock()
		if refused == nil && path == "" {
			shut(t, c)
			break // all were tried
		}
		if strings.HasSuffix(path, ".log") {
			logs++
			if !errors.Is(refused, ErrFailed) {
				t.Errorf("sync %d, of the log %s, failed, and the call that waits for it returns %v", at, path, refused)
			}
		}
		if refused != nil {
			if err := p.Copy().try(c, r); !errors.Is(err, ErrFailed) {
				t.Errorf("sync %d failed, and the catalog takes another write: %v", at, err)
			}
		}
		what := fmt.Sprintf("sync %d, of %s, failed", at, path)
		check(t)(d.Cut(nil), p.Copy(), what+", then a power cut")
		next, seen := d.Kill(), p.Copy()
		check(t)(next, seen, what+", then a restart")
		check(t)(next.Cut(nil), seen, what+", then a restart and a power cut")
	}
	if logs < 5 {
		t.Errorf("%d syncs of logs were tried", logs)
	}
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
	if err := p.try(c, r); err != nil {
		t.Fatal(err)
	}
}

// try is step that returns what fails. What it wrote is then under way.
func (p *promises) try(c *Catalog, r *rand.Rand) error {
	if r.IntN(4) == 0 {
		return p.events(c, fmt.Sprint("u", r.IntN(lossIDs)), fmt.Sprint("e", r.IntN(1000)))
	}
	var ops []Op
	after, gone := map[string]string{}, map[string]bool{}
	for range 1 + r.IntN(3) {
		item, user, text := fmt.Sprint("i", r.IntN(lossIDs)), fmt.Sprint("u", r.IntN(lossIDs)),
			fmt.Sprint("text ", r.IntN(1<<20))
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
			return res.Err
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
	return nil
}

func (p *promises) events(c *Catalog, user, item string) error {
	p.mu.Lock()
	before := p.sure[user]
	if before == "" {
		before = "user "
	}
	p.underWay[user] = before + " " + item
	p.mu.Unlock()
	if _, _, _, err := c.AppendEvents(user, []*grebev1.Event{{Item: item}}); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sure[user] = before + " " + item
	delete(p.underWay, user)
	p.version = c.Stats().Version
	return nil
}
