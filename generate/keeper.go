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

// settle is how long a change waits for others, so that one snapshot has them all.
const settle = 200 * time.Millisecond

// Target is a model for which a Keeper makes snapshots.
type Target struct {
	Name      string
	Generator *Generator
	Model     Packer
}

// KeeperOptions configure a Keeper. Zero means the default that the comment gives last.
type KeeperOptions struct {
	Dir    string       // folder of the versions' files; empty: versions are only in memory
	Keep   int          // most versions, unless more are in use; 16
	Logger *slog.Logger // nothing is logged

	compact int // of history.Options
}

// Keeper makes new snapshots when the catalog's items change, and keeps earlier versions. It follows the changes one
// by one, so a snapshot has exactly the items of its version. The nodes of a cluster make the same versions: the
// catalog's log has the places where one ends.
//
// A model follows the catalog until a version is activated. It then generates that version until another one, or
// Auto, is activated. The Keeper still makes snapshots of new versions.
//
// Lock order: build, then the history's own lock, then mu.
type Keeper struct {
	log     *slog.Logger
	storing *durable.Trouble // errors of storing versions
	saving  *durable.Trouble // errors of storing indices
	cutting *durable.Trouble // errors of ending versions in a cluster's log
	dir     string
	catalog *catalog.Catalog
	now     func() time.Time
	changed chan struct{} // holds a value if Run must make snapshots

	build   sync.Mutex // held to make snapshots and to switch between them
	history *history.History

	view atomic.Pointer[View] // of all models, if they all use the same activated version; nil: they do not

	mu      sync.Mutex
	targets []*target // replaced while build is held, never changed in place
	version uint64    // of the last change in pending
	pending *catalog.Changes
	imports map[string]*importing // running imports
	ended   []history.Delta       // of ended imports, one version each
	heard   uint64                // version of the last ended import
	hearing chan struct{}         // closed when the next import ends
	pins    map[string]Pin        // activated versions by model
	ranges  []column              // attributes of ranges that ranges.json has
}

// target is a model and its latest snapshot.
type target struct {
	Target
	indexer *indexer
	head    *Snapshot
	latest  atomic.Int64 // items of head
}

// NewKeeper makes the first snapshots and follows the catalog from then on. The catalog must not change before it
// returns. If versions are on disk, NewKeeper maps their indices instead of building them and restores the activated
// versions. Run makes later snapshots. The caller MUST Close the Keeper.
func NewKeeper(c *catalog.Catalog, opt KeeperOptions, targets ...Target) (*Keeper, error) {
	k := &Keeper{
		log: opt.Logger, dir: opt.Dir, catalog: c, changed: make(chan struct{}, 1), pending: catalog.NewChanges(),
		pins:    map[string]Pin{},
		imports: map[string]*importing{}, hearing: make(chan struct{}), now: time.Now,
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	k.storing = durable.NewTrouble(k.log, "versions of the catalog are not on disk: they are gone after a restart")
	k.saving = durable.NewTrouble(k.log, "indices of items are not on disk: they are built again at the next start")
	k.cutting = durable.NewTrouble(k.log, "models do not generate new items: the catalog's log takes no writes")
	for _, t := range targets {
		k.targets = append(k.targets, &target{Target: t, indexer: newIndexer(t.Generator.Prompt)})
	}
	k.version = c.Stats().Version
	hurt, err := k.readPins(k.version)
	if err != nil {
		return nil, err
	}
	if k.history, err = history.Open(c.Scan(), k.version,
		history.Options{Dir: opt.Dir, Keep: opt.Keep, InUse: k.inUse, Compact: opt.compact, Logger: k.log}); err != nil {
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

// start makes the models use their first snapshots.
func (k *Keeper) start() error {
	k.build.Lock()
	defer k.build.Unlock()
	k.ranges = k.readRanges()
	for _, t := range k.targets {
		if err := k.begin(t); err != nil {
			return err
		}
		t.order(k.ranges)
	}
	k.review()
	return nil
}

// begin makes a model use its first snapshot.
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
		k.log.Error("the activated version no longer exists: the latest is used", "model", t.Name,
			"version", p.Version, "error", err)
		k.unpin(t.Name)
		t.Generator.Use(t.head)
		return nil
	}
	t.Generator.stay(v)
	k.log.Warn("the model stays at a version that was activated; /v1/catalog:activate with \"auto\" ends that",
		"model", t.Name, "version", p.Version)
	return nil
}

// Add adds another checkpoint of a model. It generates the same version as the model of its name. Both follow the
// catalog and switch together, until one of them is removed.
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

// Remove stops making snapshots for a generator.
func (k *Keeper) Remove(g *Generator) {
	k.build.Lock()
	defer k.build.Unlock()
	k.mu.Lock()
	k.targets = slices.DeleteFunc(slices.Clone(k.targets), func(t *target) bool { return t.Generator == g })
	k.mu.Unlock()
	k.review()
}

// following returns the models for which snapshots are made.
func (k *Keeper) following() []*target {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.targets
}

// Close closes the files. Snapshots in use stay valid.
func (k *Keeper) Close() error {
	k.saveRanges()
	return k.history.Close()
}

// Run makes snapshots until ctx ends. If one fails, Run logs the error, and the snapshot before it stays in use.
func (k *Keeper) Run(ctx context.Context) {
	pause := settle
	idle := time.NewTicker(importIdle / 10)
	defer idle.Stop()
	k.prepare(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-idle.C:
			k.expire(ctx)
			k.saveRanges()
			continue
		case <-k.changed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		start := time.Now()
		k.CatchUp(ctx)
		k.prepare(ctx)
		// In a stream of changes, making snapshots takes at most half of the time.
		pause = max(settle, time.Since(start))
	}
}

// prepare orders the values of attributes that ranges are likely to be of, so that the first range does not wait.
func (k *Keeper) prepare(ctx context.Context) {
	k.build.Lock()
	table := k.history.Head().Table()
	k.build.Unlock()
	table.Prepare(ctx)
}

// CatchUp makes a version of all changes so far, imports apart, and Renew. In a cluster the catalog's log ends the
// version, so that all nodes have the same ones; while it takes no writes, models generate what they did before.
func (k *Keeper) CatchUp(ctx context.Context) {
	if err := k.cutting.Note(k.cut(ctx)); err != nil {
		k.wake()
	}
	k.Renew()
}

// cut has the log of a cluster's catalog end a version, if this node has changes that are in none. Another node may do
// so first.
func (k *Keeper) cut(ctx context.Context) error {
	if !k.catalog.Shared() {
		return nil
	}
	k.mu.Lock()
	n, version := k.pending.Len(), k.version
	k.mu.Unlock()
	if n == 0 {
		return nil
	}
	if err := k.catalog.Cut(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	// they came with a copy of another node's catalog, which cut them before
	if k.pending.Len() > 0 && k.version == version {
		k.ended = append(k.ended, history.Delta{Version: version, Changes: k.pending})
		k.pending = catalog.NewChanges()
	}
	return nil
}

// hear receives a change of the catalog.
func (k *Keeper) hear(c catalog.Change) {
	if c.Ended {
		k.importEnded(c.Import, c.Version)
		return
	}
	if c.OldItem == nil && c.NewItem == nil {
		return // a user changed
	}
	k.mu.Lock()
	into := k.imports[c.Import]
	if into == nil && c.Import != "" && len(k.imports) < maxImports { // it entered at another node of the cluster
		into = &importing{pending: catalog.NewChanges()}
		k.imports[c.Import] = into
	}
	for _, im := range k.imports { // the latest change of an item counts
		if im != into {
			im.pending.Forget(c.ID)
		}
	}
	if into != nil {
		k.pending.Forget(c.ID)
		into.pending.Add(c)
		into.last = k.now()
		k.mu.Unlock()
		return
	}
	k.pending.Add(c)
	k.version = c.Version
	k.mu.Unlock()
	k.wake()
}

// wake makes Run make snapshots soon.
func (k *Keeper) wake() {
	select {
	case k.changed <- struct{}{}:
	default: // Run will do so already
	}
}

// take returns the changes since its last call, except those of running imports. There is one delta for each ended
// import and one for all other changes, in ascending order of versions.
func (k *Keeper) take() []history.Delta {
	k.mu.Lock()
	pending, version, out := k.pending, k.version, k.ended
	k.ended = nil
	if k.catalog.Shared() || pending.Len() == 0 {
		pending = nil // it waits for a cut, or stays where changes are added to it
	} else {
		k.pending = catalog.NewChanges()
	}
	k.mu.Unlock()
	if pending != nil {
		out = append(out, history.Delta{Version: version, Changes: pending})
	}
	slices.SortFunc(out, func(a, b history.Delta) int { return cmp.Compare(a.Version, b.Version) })
	return out
}

// Renew makes a version of the changes and snapshots of it, and the models that follow the catalog use them. Run
// calls it.
func (k *Keeper) Renew() {
	k.build.Lock()
	defer k.build.Unlock()
	start := time.Now()
	v := k.history.Head()
	for _, d := range k.take() {
		var err error
		v, err = k.history.Apply(d)
		d.Changes.Free()
		_ = k.storing.Note(err, "version", v.Number)
	}
	for _, t := range k.following() {
		if err := k.follow(t, v); err != nil {
			k.log.Error("no snapshot of the new version: the previous one stays in use", "model", t.Name, "error", err)
			continue
		}
		k.log.Debug("made a snapshot", "model", t.Name, "version", t.head.Version, "items", t.head.Len(),
			"took", time.Since(start))
	}
}

// Failing returns the error of storing versions, or nil if the last one was stored.
func (k *Keeper) Failing() error { return k.storing.Failing() }

// follow makes a model's snapshot of the latest version. The model uses it unless a version is activated.
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

// snapshot makes a model's snapshot of a version, from the snapshot near if possible.
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

// base returns the index of the first version of a generation. If the stored index cannot be used, base builds and
// stores it. It returns nil if nothing is kept on disk.
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
		k.log.Info("the index is rebuilt", "model", t.Name, "reason", err)
	case !missing(err):
		k.history.Hurt(name, err)
	}
	if ix, err = t.indexer.build(first.Table(), first.Live()); err != nil || ix == nil {
		return nil // the caller builds an index and gets the same error
	}
	k.write(t, name, ix, first)
	return ix
}

// store writes the index of the first version of a generation, unless it is on disk.
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
