package generate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"grebe/beam"
	"grebe/catalog"
	"grebe/catalog/history"
	"grebe/internal/durable"
)

// settle is how long a change waits for others before snapshots are made of both.
const settle = 200 * time.Millisecond

// Target is a model whose snapshots a Keeper makes.
type Target struct {
	Name      string
	Generator *Generator
	Model     Packer
}

// KeeperOptions of a Keeper. Zero means the default.
type KeeperOptions struct {
	Dir    string       // folder of the versions' files; none: they are in memory alone
	Keep   int          // versions, at most, unless more are in use; 16
	Logger *slog.Logger // nothing is logged

	compact int // of history.Options
}

// Keeper makes new snapshots as the catalog's items change, and keeps earlier versions. It follows the
// changes one by one, so that a snapshot has the items of exactly the version that it names.
//
// A model follows the catalog until a version is activated: that one then stays in use until another is
// activated, or Auto is. Snapshots of what comes are made all the same.
//
// Locks: build, then the history's own, then mu.
type Keeper struct {
	log     *slog.Logger
	storing *durable.Trouble // of versions
	saving  *durable.Trouble // of indices
	dir     string
	catalog *catalog.Catalog
	now     func() time.Time
	changed chan struct{} // has an element when snapshots are to be made

	build   sync.Mutex // to make snapshots and to switch between them
	history *history.History

	view atomic.Pointer[View] // of all models that stay with one version; nil: there is none

	mu      sync.Mutex
	targets []*target // replaced with build held, never changed
	version uint64    // of the last change in pending
	pending map[string]catalog.Entry
	imports map[string]*importing // under way
	ended   []history.Delta       // of imports, each a version
	heard   uint64                // version of the last import that ended
	hearing chan struct{}         // closed when the next import ends
	pins    map[string]pin        // versions that models stay with, by their names
}

// target is a model and the last snapshot made for it.
type target struct {
	Target
	indexer *indexer
	head    *Snapshot
	latest  atomic.Int64 // items of head
}

// NewKeeper makes the first snapshots and follows the catalog from then on, which nobody may change
// before it returns. What was kept on disk is read back: snapshots are then not built but mapped, and the
// versions in use are those of before. Run makes the later snapshots. The caller MUST Close the keeper.
func NewKeeper(c *catalog.Catalog, opt KeeperOptions, targets ...Target) (*Keeper, error) {
	k := &Keeper{
		log: opt.Logger, dir: opt.Dir, catalog: c, changed: make(chan struct{}, 1), pending: map[string]catalog.Entry{}, pins: map[string]pin{},
		imports: map[string]*importing{}, hearing: make(chan struct{}), now: time.Now,
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	k.storing = durable.NewTrouble(k.log, "versions of the catalog are not on disk: they are gone after a restart")
	k.saving = durable.NewTrouble(k.log, "indices of items are not on disk: they are built again at the next start")
	for _, t := range targets {
		k.targets = append(k.targets, &target{Target: t, indexer: newIndexer(t.Generator.Prompt)})
	}
	k.version = c.Stats().Version
	hurt, err := k.readPins(k.version)
	if err != nil {
		return nil, err
	}
	if k.history, err = history.Open(c.Entries(), k.version, history.Options{Dir: opt.Dir, Keep: opt.Keep, InUse: k.inUse, Compact: opt.compact, Logger: k.log}); err != nil {
		return nil, err
	}
	if hurt != nil {
		k.history.Hurt(k.pinFile(), hurt)
	}
	if err := k.start(); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	c.Subscribe(k.hear)
	return k, nil
}

// start puts the first snapshots into use.
func (k *Keeper) start() error {
	k.build.Lock()
	defer k.build.Unlock()
	for _, t := range k.targets {
		if err := k.begin(t); err != nil {
			return err
		}
	}
	k.review()
	return nil
}

// begin puts a model's first snapshot into use.
func (k *Keeper) begin(t *target) error {
	if err := k.follow(t, k.history.Head()); err != nil {
		return fmt.Errorf("model %s: %w", t.Name, err)
	}
	p, ok := k.pin(t.Name)
	if !ok {
		return nil
	}
	var v *View
	s, err := k.earlier(t, p.Version)
	if err == nil {
		v, err = k.viewOf(t, s, p.At)
	}
	if err != nil {
		k.log.Error("the version that was activated is not there any more: the latest is used", "model", t.Name, "version", p.Version, "error", err)
		k.unpin(t.Name)
		t.Generator.Use(t.head)
		return nil
	}
	t.Generator.stay(v)
	return nil
}

// Add has another checkpoint of a model generate what the one of its name does, from now on. Both follow the catalog, and
// switch together, until one of them is removed.
func (k *Keeper) Add(next Target) error {
	k.build.Lock()
	defer k.build.Unlock()
	t := &target{Target: next, indexer: newIndexer(next.Generator.Prompt)}
	if err := k.begin(t); err != nil {
		return err
	}
	k.mu.Lock()
	k.targets = append(slices.Clone(k.targets), t)
	k.mu.Unlock()
	k.review()
	return nil
}

// Remove has a generator follow the catalog no more.
func (k *Keeper) Remove(g *Generator) {
	k.build.Lock()
	defer k.build.Unlock()
	k.mu.Lock()
	k.targets = slices.DeleteFunc(slices.Clone(k.targets), func(t *target) bool { return t.Generator == g })
	k.mu.Unlock()
	k.review()
}

// following returns the models whose snapshots are made.
func (k *Keeper) following() []*target {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.targets
}

// Close closes the files. Snapshots in use stay valid.
func (k *Keeper) Close() error { return k.history.Close() }

// Run makes snapshots until ctx ends. What cannot be made is logged, and the one before stays in use.
func (k *Keeper) Run(ctx context.Context) {
	pause := settle
	idle := time.NewTicker(importIdle / 10)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-idle.C:
			k.expire(ctx)
			continue
		case <-k.changed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		start := time.Now()
		k.Renew()
		// Under a stream of changes at most half of the time goes into snapshots.
		pause = max(settle, time.Since(start))
	}
}

// hear takes in a change of the catalog.
func (k *Keeper) hear(c catalog.Change) {
	if c.Ended {
		k.importEnded(c.Import, c.Version)
		return
	}
	if c.OldItem == nil && c.NewItem == nil {
		return // of a user
	}
	k.mu.Lock()
	e := catalog.Entry{Item: c.NewItem, Version: c.Version}
	into := k.imports[c.Import]
	for _, im := range k.imports { // the latest change of an item counts
		if im != into {
			delete(im.pending, c.ID)
		}
	}
	if into != nil {
		delete(k.pending, c.ID)
		into.pending[c.ID], into.last = e, k.now()
		k.mu.Unlock()
		return
	}
	k.pending[c.ID], k.version = e, c.Version
	k.mu.Unlock()
	k.wake()
}

// wake has Run make snapshots soon.
func (k *Keeper) wake() {
	select {
	case k.changed <- struct{}{}:
	default: // it is known already
	}
}

// take returns what changed since it was last called, but for imports that are under way: a delta for each
// import that ended, and one for all other changes, versions ascending.
func (k *Keeper) take() []history.Delta {
	k.mu.Lock()
	pending, version, out := k.pending, k.version, k.ended
	k.pending, k.ended = map[string]catalog.Entry{}, nil
	k.mu.Unlock()
	if len(pending) > 0 {
		out = append(out, deltaOf(pending, version))
	}
	slices.SortFunc(out, func(a, b history.Delta) int { return cmp.Compare(a.Version, b.Version) })
	return out
}

func deltaOf(changes map[string]catalog.Entry, version uint64) history.Delta {
	d := history.Delta{Version: version}
	for id, e := range changes {
		d.Remove = append(d.Remove, id)
		if e.Item != nil {
			d.Add = append(d.Add, e)
		}
	}
	slices.SortFunc(d.Add, func(a, b catalog.Entry) int { return cmp.Compare(a.Version, b.Version) })
	slices.Sort(d.Remove)
	return d
}

// Renew makes a version of what changed, snapshots of it, and has the models that follow use them. Run calls
// it when it is time.
func (k *Keeper) Renew() {
	k.build.Lock()
	defer k.build.Unlock()
	start := time.Now()
	v := k.history.Head()
	for _, d := range k.take() {
		var err error
		v, err = k.history.Apply(d)
		_ = k.storing.Note(err, "version", v.Number)
	}
	for _, t := range k.following() {
		if err := k.follow(t, v); err != nil {
			k.log.Error("the items that are generated stay as they were", "model", t.Name, "error", err)
			continue
		}
		k.log.Debug("items that are generated", "model", t.Name, "version", t.head.Version, "items", t.head.Len(), "took", time.Since(start))
	}
}

// Failing returns why versions of the catalog cannot be stored at present; nil: they can.
func (k *Keeper) Failing() error { return k.storing.Failing() }

// follow makes a model's snapshot of the last version, and has the model use it unless it stays with another.
func (k *Keeper) follow(t *target, v *history.Version) error {
	if t.head == nil || t.head.at != v {
		s, err := k.snapshot(t, v, t.head)
		if err != nil {
			return err
		}
		t.head = s
		t.latest.Store(int64(s.Len()))
		k.store(t, v, s.index)
	}
	if !k.Pinned(t.Name) && t.Generator.Snapshot() != t.head {
		t.head.warm(t.Generator.Snapshot())
		t.Generator.Use(t.head)
	}
	return nil
}

// snapshot makes a model's snapshot of a version, from one that is near if it can.
func (k *Keeper) snapshot(t *target, v *history.Version, near *Snapshot) (*Snapshot, error) {
	ix, err := t.indexer.index(v, near, func(first *history.Version) *beam.Index { return k.base(t, first) })
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Version: strconv.FormatUint(v.Number, 10), Created: v.Created, table: v.Table(), at: v}
	was := cmp.Or(near, t.Generator.Snapshot(), t.head)
	if err := s.complete(ix, t.Generator.Prompt, t.Model, was); err != nil {
		return nil, err
	}
	s.Skipped, s.Unusable = v.Bare+v.Items-s.Len(), v.Items-s.Len()
	if s.Unusable > 0 {
		s.Examples = t.indexer.unusable(v)
	}
	if known := t.head; s.Unusable > 0 && (known == nil || s.Unusable > known.Unusable) {
		k.log.Warn("items have codes that the model does not have: they are never generated",
			"model", t.Name, "items", s.Unusable, "of", v.Items, "examples", strings.Join(s.Examples, "; "))
	}
	return s, nil
}

// base returns the index of the version that a generation began with: the stored one, or, where that is
// not of use, one that is built and stored now. It is nil where nothing is kept on disk.
func (k *Keeper) base(t *target, first *history.Version) *beam.Index {
	name := first.IndexFile(indexName(t.Name))
	if name == "" {
		return nil
	}
	ix, err := t.indexer.read(name, first)
	switch {
	case err == nil:
		return ix
	case errors.Is(err, errOther):
		k.log.Info("the index is built anew", "model", t.Name, "reason", err)
	case !missing(err):
		k.history.Hurt(name, err)
	}
	if ix, err = t.indexer.build(first.Table(), first.Live()); err != nil || ix == nil {
		return nil // what is wrong comes up again
	}
	k.write(t, name, ix, first)
	return ix
}

// store keeps an index on disk if it begins a generation and is not there yet.
func (k *Keeper) store(t *target, v *history.Version, ix *beam.Index) {
	name := v.IndexFile(indexName(t.Name))
	if name == "" || ix == nil || !v.Base() {
		return
	}
	if _, err := os.Stat(name); missing(err) {
		k.write(t, name, ix, v)
	}
}

func (k *Keeper) write(t *target, name string, ix *beam.Index, v *history.Version) {
	_ = k.saving.Note(t.indexer.write(name, ix, v), "model", t.Name)
}
