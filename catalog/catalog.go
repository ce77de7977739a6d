// Package catalog keeps items and users by id: in memory for reading, and on disk when opened there.
//
// New makes a catalog that lives in memory alone; Open makes one that outlives its process. Reading is
// a map lookup in both: no request waits for a disk. A write returns once it is durable, and shares
// its fsync with the writes that came while the one before it ran. Killing the process at any moment
// loses no write that returned. Readers see a write only when it is durable.
//
// A returned entry never changes: a Put replaces it. Items are kept as records, see record, and decoded when they are
// asked for. Every change gets the next version of the catalog, which is also
// the version of the item or user. So versions of an id only grow, across deletions and restarts too. Writing what is
// there already changes nothing.
//
// Memory: an item takes about 30 bytes beyond its record, which has its strings, a byte for each, and its numbers. A
// user takes about 280 bytes, plus 16 and the id's length per item of its history, plus 96 and the item's id per event.
// Options.MaxMemory bounds the sum. Of what is left, up to 64 MiB have items that were decoded lately.
//
// Deletion: a deleted item or user is gone for readers when the call returns. Its bytes are gone from
// the files (write-ahead log included) when a background sweep has rewritten the files that held
// them: it starts Options.SweepDelay after the first deletion, takes as long as rewriting those files
// takes, and is resumed after a restart.
//
// Other rooms remove what they keep of a user themselves: with Options.TrackDeletions a deletion stays recorded, user
// id included, until they call DeletionDone.
//
// Locks: the queue of writers (queueMu), then the maps (mu), which is held for map operations only.
// The one writer that leads a round is alone in changing the maps, so it reads them without a lock.
package catalog

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/wire"
	"grebe/prompt"
)

var (
	// ErrFull says that the catalog holds as much as it may.
	ErrFull = errors.New("the catalog is full")
	// ErrLocked says that another process, or this one, has the folder open.
	ErrLocked = errors.New("the catalog is in use by another process")
	// ErrFailed says that a write to the disk failed; only reads are possible until the catalog is
	// opened again, since what the disk holds is not known.
	ErrFailed = errors.New("the catalog's disk failed")
	// ErrClosed says that the catalog was closed.
	ErrClosed = errors.New("the catalog is closed")
)

// maxID bounds the length of an id in bytes.
const maxID = 512

// Options bound a catalog. Zero means the default.
type Options struct {
	MaxItems   int           // 10 million
	MaxUsers   int           // 10 million
	MaxMemory  int64         // bytes of memory, estimated; 8 GiB
	MaxHistory int           // items of a user's history, and events, the oldest are dropped; 20,000
	SweepDelay time.Duration // from a deletion to the start of the sweep that removes its bytes; 1 s
	OnChange   func(Change)  // see Subscribe
	// TrackDeletions records each deleted user, in the batch that deletes it, until DeletionDone. Whoever keeps something
	// of users elsewhere can then remove it after a crash: see PendingDeletions. Default: deletions are not recorded.
	TrackDeletions bool
	// TrackUnknown has TrackDeletions record users whom the catalog does not have too: caches may have something of them.
	TrackUnknown bool
	// Replicated gives a catalog on disk a log of its rounds, which other nodes follow. It takes writes once Attach was
	// called. MaxHistory MUST be the same on all nodes.
	Replicated bool
	LogBytes   int64 // of the log's records that are kept, about; 64 MiB

	disk   vfs.FS       // where the folder is; default: the system's. Tests put power cuts behind it.
	Logger *slog.Logger // nothing is logged
}

func (o *Options) setDefaults() {
	for _, d := range []struct {
		v   *int
		def int
	}{{&o.MaxItems, 10_000_000}, {&o.MaxUsers, 10_000_000}, {&o.MaxHistory, 20_000}} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	if o.MaxMemory <= 0 {
		o.MaxMemory = 8 << 30
	}
	if o.SweepDelay <= 0 {
		o.SweepDelay = time.Second
	}
	if o.LogBytes <= 0 {
		o.LogBytes = 64 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// userEntry is a user and what is known of it. It never changes.
type userEntry struct {
	user     *grebev1.User
	version  uint64
	digest   digest // of its content when put; zero once events were appended
	size     int64  // estimated bytes of memory
	appended int    // events appended on disk since the user was last written in full
}

// Catalog holds items and users. It is safe for concurrent use.
type Catalog struct {
	opt    Options
	store  *store      // nil: in memory alone
	log    *replicated // nil: not replicated
	member bool        // the files are a cluster's, and this catalog is not replicated: it takes no writes

	mu      sync.RWMutex
	id      string
	items   *items
	recent  *recent
	users   map[string]*userEntry
	totals  totals
	uncut   bool  // items have changed since the last cut, or may have
	failed  error // sticky
	watches []func(Change)

	deletions deletions

	queueMu sync.Mutex
	queue   []*writer
	busy    bool // a writer leads
	closed  bool
}

// totals are the sums over all entries.
type totals struct {
	version uint64 // changes so far
	bytes   int64
	dropped int64 // items and events of histories dropped since the start
	digest  digest
}

// New returns an empty catalog in memory. It needs no Close.
func New(opt Options) *Catalog {
	opt.setDefaults()
	c := &Catalog{opt: opt, id: rand.Text(), items: newItems(), recent: new(recent),
		users: map[string]*userEntry{}}
	if opt.OnChange != nil {
		c.watches = []func(Change){opt.OnChange}
	}
	return c
}

// Counts returns the number of items and users, and a version that changes with every change.
func (c *Catalog) Counts() (items, users int, version string) {
	s := c.Stats()
	return s.Items, s.Users, strconv.FormatUint(s.Version, 10)
}

// Stats describes a catalog.
type Stats struct {
	Items, Users int
	Version      uint64 // grows by one with every change
	Digest       string // of the content of all items, whatever their order and versions
	Memory       int64  // estimated bytes
	Dropped      int64  // items and events dropped from histories that were too long, since the start
	Durable      bool
	ID           string // made at random when the catalog was created; kept on disk
}

// Stats returns the catalog's description at one moment.
func (c *Catalog) Stats() Stats {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return Stats{
		Items: c.items.n, Users: len(c.users), Version: c.totals.version, Digest: c.totals.digest.String(),
		Memory: c.totals.bytes, Dropped: c.totals.dropped, Durable: c.store != nil, ID: c.id,
	}
}

// Item returns an item. The caller MUST NOT change it.
func (c *Catalog) Item(id string) (*prompt.Item, bool) {
	it, _, ok := c.Lookup(id)
	return it, ok
}

// Lookup returns an item and its version, by which what was made of it may be kept. The caller MUST
// NOT change it.
func (c *Catalog) Lookup(id string) (it *prompt.Item, version uint64, ok bool) {
	c.mu.RLock()
	e, ok := c.items.look(id)
	recent, room := c.recent, c.opt.MaxMemory-c.totals.bytes
	c.mu.RUnlock()
	if !ok {
		return nil, 0, false
	}
	return recent.item(e, id, room), e.version, true
}

// Match calls f with an item that it MUST NOT keep, and returns what f returned; false: there is no such item. It
// allocates nothing, for callers that ask for many items that nobody has read lately.
func (c *Catalog) Match(id string, f func(*prompt.Item) bool) bool {
	c.mu.RLock()
	e, ok := c.items.look(id)
	c.mu.RUnlock()
	if !ok {
		return false
	}
	s := scratches.Get().(*scratch)
	if err := s.read(e.record); err != nil { // it was made or checked when it came
		panic(fmt.Sprintf("catalog: item %q: %v", id, err))
	}
	matches := f(&s.item)
	s.forget()
	scratches.Put(s)
	runtime.KeepAlive(e.block)
	return matches
}

// FirstValues calls f with the attributes of an item that have a value, and the first value of each, if the catalog has
// such an item with a version above at. It returns whether it has. f MUST NOT keep what it gets. Nothing else of the
// item is read: this is for callers that ask for thousands of items.
func (c *Catalog) FirstValues(id string, at uint64, f func(name, first string)) bool {
	c.mu.RLock()
	e, ok := c.items.look(id)
	c.mu.RUnlock()
	if !ok || e.version <= at {
		return false
	}
	e.record.firstValues(f)
	runtime.KeepAlive(e.block)
	return true
}

// User returns a user. The caller MUST NOT change it.
func (c *Catalog) User(id string) (*grebev1.User, bool) {
	c.mu.RLock()
	e := c.users[id]
	c.mu.RUnlock()
	if e == nil {
		return nil, false
	}
	return e.user, true
}

// Resolve turns a user into what prompt takes. The history is looked up now: items that are not in
// the catalog, for instance because they were deleted since, are left out and counted. A user
// without history but with events has the events' items as history.
func (c *Catalog) Resolve(m *grebev1.User) (u *prompt.User, unknown int) {
	return ResolveWith(m, c.Item)
}

// fewNames is the length up to which histories may have an item in memory as often as they name it.
const fewNames = 64

// ResolveWith is Resolve with items that find returns.
func ResolveWith(m *grebev1.User, find func(id string) (*prompt.Item, bool)) (u *prompt.User, unknown int) {
	u = &prompt.User{ID: m.Id, Text: m.GetText(), Tokens: m.Tokens}
	var named map[string]*prompt.Item // of long histories: one may name a large item ten thousand times
	if len(m.History)+len(m.Events)+len(m.NewEvents) > fewNames {
		named = map[string]*prompt.Item{}
	}
	add := func(id string) {
		it, ok := named[id]
		if !ok {
			if it, ok = find(id); ok && named != nil {
				named[id] = it
			}
		}
		if ok {
			u.History = append(u.History, it)
		} else {
			unknown++
		}
	}
	for _, id := range m.History {
		add(id)
	}
	if len(m.History) == 0 {
		for _, e := range m.Events {
			add(e.GetItem())
		}
	}
	for _, e := range m.NewEvents {
		add(e.GetItem())
	}
	return u, unknown
}

// Item turns a message into what prompt takes; both share memory.
func Item(m *grebev1.Item) *prompt.Item {
	it := &prompt.Item{ID: m.Id, Text: m.GetText(), Tokens: m.Tokens, Identifier: -1, Codes: m.Codes}
	if m.Identifier != nil {
		it.Identifier = *m.Identifier
	}
	if len(m.Attributes) > 0 {
		it.Attributes = make(map[string][]string, len(m.Attributes))
		for name, v := range m.Attributes {
			it.Attributes[name] = v.GetValues()
		}
	}
	return it
}

// Message is the inverse of Item.
func Message(it *prompt.Item) *grebev1.Item {
	m := &grebev1.Item{Id: it.ID, Tokens: it.Tokens, Codes: it.Codes}
	if it.Text != "" {
		m.Text = &it.Text
	}
	if it.Identifier >= 0 {
		m.Identifier = &it.Identifier
	}
	if len(it.Attributes) > 0 {
		m.Attributes = make(map[string]*grebev1.Values, len(it.Attributes))
		for name, v := range it.Attributes {
			m.Attributes[name] = &grebev1.Values{Values: v}
		}
	}
	return m
}

// CheckID reports what is wrong with the id of an item or a user.
func CheckID(id string) error { return checkID(id) }

func checkID(id string) error {
	if id == "" {
		return &wire.Error{Field: "id", Problem: "is missing"}
	}
	if len(id) > maxID {
		return &wire.Error{Field: "id", Problem: fmt.Sprintf("%d bytes, at most %d", len(id), maxID)}
	}
	return nil
}
