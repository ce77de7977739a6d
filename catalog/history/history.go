// Package history keeps a catalog's items at several of its versions: in memory, and in files when it is
// given a folder. A version has the whole items, so that a model that goes back to it also goes back to
// their texts.
//
// Items lie in generations. A generation begins with all items of one version, its base, and grows by
// what later versions add and remove; a version is a place in that log. When the log has become long
// against the base a new generation begins. So a version costs what changed, not what there is.
//
// What a version is made of never changes. Its Digest is a sum over its items' contents,
// which does not depend on their order or history; the digest in a file is checked when the file is read.
//
// Versions are kept up to a bound, the younger the denser: of three in a row the one in the middle goes
// first where the gap that it leaves is small against its age. A generation goes with its last version.
//
// Files are written whole under another name, synced and renamed, logs are appended to and synced: after a kill at any
// moment every version is either whole or not there. The catalog stays the truth: Open compares the last version with
// it and adds what is missing. A torn or damaged file is logged, counted and made anew. FORMAT.md describes the files.
// They name deleted items until the versions that have them are gone.
//
// Open, Apply, Load and the methods that read the items of a Version are for one goroutine at a time. Returned tables
// and the list of versions are safe for all.
package history

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"grebe/catalog"
	"grebe/internal/durable"
)

// Options of a History. Zero means the default.
type Options struct {
	Dir     string                    // folder of the files; none: nothing is kept on disk
	Keep    int                       // versions, at most, unless more are in use; 16
	InUse   func(version uint64) bool // versions that must stay; none
	Compact int                       // changes of a generation before the next one, or a quarter of its items; 16,384
	Logger  *slog.Logger              // nothing is logged
	Now     func() time.Time          // time.Now

	readFile func(name string) ([]byte, error) // os.ReadFile; tests let it fail
}

func (o *Options) setDefaults() {
	if o.Keep <= 0 {
		o.Keep = 16
	}
	if o.Compact <= 0 {
		o.Compact = 1 << 14
	}
	if o.InUse == nil {
		o.InUse = func(uint64) bool { return false }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.readFile == nil {
		o.readFile = os.ReadFile
	}
}

// History is the versions that are kept.
type History struct {
	opt Options

	mu       sync.Mutex
	current  *Generation
	versions []*Version // oldest first; the last is the head
	damaged  int
	removing *durable.Trouble
	pause    time.Duration // between attempts to write to a disk that fails
	retry    time.Time     // of the next attempt
}

// A disk that cannot be written to is tried again after a pause, which doubles up to the longest.
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

// Version is the items at one version of the catalog. It never changes.
type Version struct {
	Number  uint64 // of the catalog
	Created time.Time
	Items   int // with codes
	Bare    int // without codes
	Digest  Digest

	gen   *Generation
	ops   int // length of the generation's log
	slots int
}

// Delta is what changes a catalog's items. Deletions of items that are not there are passed over.
type Delta struct {
	Version uint64           // of the catalog afterwards
	Changes *catalog.Changes // nil: none
}

// Record does what Open and Close do. Of a folder without versions it keeps no items in memory.
func Record(items iter.Seq[catalog.Entry], version uint64, opt Options) error {
	opt.setDefaults()
	numbers, err := generations(opt.Dir)
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	if len(numbers) > 0 {
		h, err := Open(items, version, opt)
		if err != nil {
			return err
		}
		return h.Close()
	}
	g := &Generation{dir: opt.Dir, begun: head{number: version, created: opt.Now()}}
	if _, err = g.stream(recordsOf(items)); err == nil {
		err = g.close()
	}
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return nil
}

// Open restores what the folder has and brings it to what the catalog has: all its items, versions
// ascending, and its own version. It keeps no item that it was given.
func Open(items iter.Seq[catalog.Entry], version uint64, opt Options) (*History, error) {
	opt.setDefaults()
	h := &History{opt: opt, removing: durable.NewTrouble(opt.Logger,
		"files of old versions of the catalog cannot be removed")}
	if opt.Dir != "" {
		if err := h.restore(version); err != nil {
			return nil, fmt.Errorf("history: %w", err)
		}
	}
	if err := h.follow(items, version); err != nil {
		return nil, fmt.Errorf("history: %w", errors.Join(err, h.close()))
	}
	h.thin()
	return h, nil
}

// Close closes the files. Versions that were handed out stay valid.
func (h *History) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.close()
}

func (h *History) close() error {
	if h.current == nil {
		return nil
	}
	return h.current.close()
}

// Head returns the last version.
func (h *History) Head() *Version {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.versions[len(h.versions)-1]
}

// Versions returns what is kept, oldest first.
func (h *History) Versions() []*Version {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]*Version(nil), h.versions...)
}

// Find returns a version that is kept.
func (h *History) Find(number uint64) (*Version, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range h.versions {
		if v.Number == number {
			return v, true
		}
	}
	return nil, false
}

// Damaged returns how many files, or ends of files, were found damaged.
func (h *History) Damaged() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.damaged
}

// Hurt counts and logs a damaged file that somebody else found.
func (h *History) Hurt(file string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hurt(file, err)
}

func (h *History) hurt(file string, err error) {
	h.damaged++
	h.opt.Logger.Warn("a file of the catalog's versions is damaged: its content is rebuilt from the catalog, as far as "+
		"it is still there", "file", file, "error", err)
}

// Apply adds a version. It returns the head: the one before where nothing changed. An error means that the
// version is not on disk; it is there all the same until the process ends.
func (h *History) Apply(d Delta) (*Version, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.current
	if d.Changes == nil {
		d.Changes = catalog.NewChanges()
	}
	if g.stored && !g.failed && !g.plain && d.Changes.Len() > max(h.opt.Compact, g.baseSlots/4) {
		if v, err := h.rebase(d); err == nil {
			return v, nil
		} else {
			h.opt.Logger.Warn("a version with many changes is made in memory: its files cannot be written", "version",
				d.Version, "error", err)
		}
	}
	f := frame{version: d.Version, created: h.opt.Now(), bare: g.now.bare}
	for e, deleted := range d.Changes.All() {
		if slot, ok := g.table.Find(e.Item.ID, g.lives); ok {
			f.removed = append(f.removed, slot)
			if g.table.record(slot).bare() {
				f.bare--
			}
		}
		if deleted {
			continue
		}
		f.added = append(f.added, record{e.Version, content(nil, e.Item)})
		if len(e.Item.Codes) == 0 {
			f.bare++
		}
	}
	return h.push(g, f)
}

// rebase adds a version with many changes by beginning a generation. It goes over the items as they are written, so
// that the memory never has them.
func (h *History) rebase(d Delta) (*Version, error) {
	old, last := h.current, h.versions[len(h.versions)-1]
	stays, changes := slices.Clone(old.alive), false
	for e, deleted := range d.Changes.All() {
		slot, there := old.table.Find(e.Item.ID, old.lives)
		if there {
			stays[slot/64] &^= 1 << (slot % 64)
		}
		changes = changes || there || !deleted
	}
	if !changes || d.Version <= last.Number {
		return last, nil
	}
	next := &Generation{dir: old.dir, begun: head{number: d.Version, created: h.opt.Now()}}
	base, err := next.stream(func(yield func(record) bool) {
		for slot, r := range old.table.all(0) {
			if stays[slot/64]>>(slot%64)&1 != 0 && !yield(r) {
				return
			}
		}
		var buf []byte
		for e, deleted := range d.Changes.All() {
			if deleted {
				continue
			}
			buf = content(buf[:0], e.Item)
			if !yield(record{e.Version, buf}) {
				return
			}
		}
	})
	if err == nil {
		err = base.mapped(next.file("items"))
	}
	if err != nil {
		return nil, errors.Join(err, next.close(), next.remove())
	}
	next.fill(base)
	next.stored, next.safe = true, d.Version
	h.current, h.versions = next, append(h.versions, next.first())
	_ = old.close() // all that was written to it is synced
	old.settle()
	old.retire()
	h.sweep(old)
	h.thin()
	return h.versions[len(h.versions)-1], nil
}

// push makes a frame the head, if it changes anything.
func (h *History) push(g *Generation, f frame) (*Version, error) {
	head := h.versions[len(h.versions)-1]
	if len(f.removed)+len(f.added) == 0 || f.version <= head.Number {
		return head, nil
	}
	v := g.apply(&f)
	h.versions = append(h.versions, v)
	err := g.write(&f)
	if g.long(h.opt.Compact) || g.failed && !h.opt.Now().Before(h.retry) {
		err = h.renew(v)
	}
	h.thin()
	if err != nil {
		err = fmt.Errorf("history: version %d: %w", f.version, err)
	}
	return h.versions[len(h.versions)-1], err
}

// renew begins a generation with a version's items, and the version moves there.
func (h *History) renew(v *Version) error {
	old := h.current
	h.current = old.compact(v)
	h.versions[len(h.versions)-1] = h.current.first()
	err := h.current.create()
	if err == nil {
		h.pause = 0
	} else {
		h.pause = min(max(firstPause, 2*h.pause), longestPause)
		h.retry = h.opt.Now().Add(h.pause)
	}
	_ = old.close() // all that was written to it is synced
	if old.failed {
		h.abandon(old)
	}
	h.sweep(old)
	return err
}

// abandon drops the versions of a generation that could not be written. They are in memory alone, each
// generation with all of its items: of a disk that stays full they would fill the memory too. Versions that
// were written before the failure stay, and can be read from their files.
func (h *History) abandon(g *Generation) {
	lost := func(v *Version) bool { return v.gen == g && (!g.stored || v.Number > g.safe) }
	h.versions = slices.DeleteFunc(h.versions, func(v *Version) bool { return lost(v) && !h.opt.InUse(v.Number) })
	if g.stored && !slices.ContainsFunc(h.versions, lost) {
		g.failed = false
	}
}

// begin makes a first generation.
func (h *History) begin(items iter.Seq[catalog.Entry], version uint64) error {
	return h.beginAt(items, head{number: version, created: h.opt.Now()})
}

// beginAt makes a generation of items. Earlier versions that are listed stay.
func (h *History) beginAt(items iter.Seq[catalog.Entry], at head) error {
	var base segment
	var buf []byte
	for e := range items {
		buf = content(buf[:0], e.Item)
		base.add(e.Version, buf)
		if len(e.Item.Codes) == 0 {
			at.bare++
		}
	}
	at.items, at.digest = base.n-at.bare, base.digest()
	g := newGeneration(h.opt.Dir, at, base)
	h.current, h.versions = g, append(h.versions, g.first())
	return g.create()
}

// upgrade goes on from a generation of format 1, whose records have no texts: a new one begins with whole
// items. Versions before it stay as they are.
func (h *History) upgrade(items iter.Seq[catalog.Entry], version uint64) error {
	old, last := h.current, h.versions[len(h.versions)-1]
	var sum Digest
	for e := range items {
		if len(e.Item.Codes) > 0 {
			sum = sum.plus(digestOf(generated(nil, e.Item)))
		}
	}
	at := head{number: last.Number, created: last.Created}
	if sum != last.Digest {
		if version <= last.Number {
			h.hurt(h.opt.Dir, errors.New("it does not fit the catalog"))
			if err := h.discard(); err != nil {
				return err
			}
			return h.begin(items, version)
		}
		at.number, at.created = version, h.opt.Now()
	} else {
		h.versions = h.versions[:len(h.versions)-1]
	}
	if err := old.close(); err != nil {
		return err
	}
	if err := h.beginAt(items, at); err != nil {
		return err
	}
	if old.begun.number != at.number { // else its file has just been replaced
		h.sweep(old)
	}
	return nil
}

// follow brings the head to what the catalog has.
func (h *History) follow(items iter.Seq[catalog.Entry], version uint64) error {
	if h.current == nil {
		return h.begin(items, version)
	}
	if h.current.plain {
		return h.upgrade(items, version)
	}
	f, ok := h.current.diff(items)
	f.version, f.created = version, h.opt.Now()
	if changed := len(f.removed)+len(f.added) > 0; !ok || changed && version <= h.versions[len(h.versions)-1].Number {
		h.hurt(h.opt.Dir, errors.New("it does not fit the catalog"))
		if err := h.discard(); err != nil {
			return err
		}
		return h.begin(items, version)
	}
	_, err := h.push(h.current, f)
	return err
}

// thin drops versions until no more than the bound are left.
func (h *History) thin() {
	now := h.opt.Now()
	for len(h.versions) > h.opt.Keep {
		drop, least := -1, 0.0
		for i := 0; i+1 < len(h.versions); i++ {
			v := h.versions[i]
			if h.opt.InUse(v.Number) {
				continue
			}
			before := v.Created // the oldest leaves no gap but loses what it alone reaches back to
			if i > 0 {
				before = h.versions[i-1].Created
			}
			gap := float64(h.versions[i+1].Created.Sub(before)) / float64(max(1, now.Sub(before)))
			if drop < 0 || gap < least {
				drop, least = i, gap
			}
		}
		if drop < 0 {
			return
		}
		g := h.versions[drop].gen
		h.versions = append(h.versions[:drop:drop], h.versions[drop+1:]...)
		h.sweep(g)
	}
}

// sweep removes a generation that has no version left.
func (h *History) sweep(g *Generation) {
	if g == h.current {
		return
	}
	for _, v := range h.versions {
		if v.gen == g {
			return
		}
	}
	_ = h.removing.Note(g.remove()) // the next start tries again
}

// Load makes a version's items readable, from its files where they are not in memory. It fails with ErrDamaged
// where those are of no use.
func (h *History) Load(v *Version) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := v.gen
	if g.table == nil {
		if _, _, err := g.load(h); err != nil {
			if errors.Is(err, ErrDamaged) {
				h.hurt(g.file("items"), err)
			}
			return fmt.Errorf("history: version %d: %w", v.Number, err)
		}
	}
	if v.ops > len(g.ops) {
		return fmt.Errorf("history: version %d: %w: the log ends before it", v.Number, ErrDamaged)
	}
	return nil
}

// Unload lets go of what Load read. Tables that were handed out stay valid.
func (h *History) Unload(v *Version) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if prior := h.current.prior; v.gen == h.current || prior != nil && v.gen == prior.gen {
		return
	}
	v.gen.retire()
}

// Forget drops a version, because its files are of no use.
func (h *History) Forget(v *Version) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, w := range h.versions[:len(h.versions)-1] {
		if w == v {
			h.versions = append(h.versions[:i:i], h.versions[i+1:]...)
			h.sweep(v.gen)
			return
		}
	}
}

// Before reports whether a version is of the same generation as another and not later.
func (v *Version) Before(w *Version) bool { return v.gen == w.gen && v.ops <= w.ops }

// Plain reports whether the version's files are of format 1, which has neither texts nor items without codes.
func (v *Version) Plain() bool { return v.gen.plain }

// Base reports whether a version begins its generation.
func (v *Version) Base() bool { return v.ops == 0 }

// Table returns the version's items, which MUST have been loaded.
func (v *Version) Table() *Table { return v.gen.at(v.slots) }

// IndexFile names a file beside those of the version's generation, for what belongs to its base alone. It
// goes with the generation. Empty: nothing is kept on disk.
func (v *Version) IndexFile(name string) string { return v.gen.file("index-" + name) }

// First returns what the version's generation began with.
func (v *Version) First() *Version { return v.gen.first() }

// Prior returns, for a version that begins its generation, the same items in the generation before, and their
// slots here by their slots there; nil once the next version has come.
func (v *Version) Prior() (before *Version, numbers []uint32) {
	if !v.Base() {
		return nil, nil
	}
	return v.gen.prior, v.gen.numbers
}

// Since returns what changed from one version to a later one of the same generation.
func (v *Version) Since(from *Version) (removed, added []uint32) {
	return v.gen.net(from.ops, v.ops)
}

// Live returns the slots in use at the version, ascending.
func (v *Version) Live() []uint32 { return v.gen.live(v) }
