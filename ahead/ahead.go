// Package ahead computes items of the catalog while the server is idle, before a request needs them.
//
// Each model has a goroutine that makes passes over the catalog. A pass sorts the items by heat: first those that
// requests named, then those in users' histories, then the others. It computes them in small steps in idle time
// (reuse.Spare). It ends when all items are cached or their share of the cache is full
// (schedule.Ahead).
//
// A full pass starts with the server, with a new checkpoint, after many items changed, when memory became free, and on
// request. When the list of the hottest items changes, a short pass computes only these.
//
// In a cluster the nodes divide the catalog (Options.Share), so that each item is computed once. The items that are hot
// in the whole cluster are computed by all nodes (BAT-4), and those that are hot at a node by that node too: short
// passes do not look at the division.
//
// A step holds its checkpoint. Nothing is held between steps, so a pass never delays a reload.
package ahead

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grebe/catalog"
	"grebe/kv/disk"
	"grebe/reuse"
	"grebe/schedule"
)

// Checkpoint is the checkpoint that serves a model, with what a pass needs of it.
type Checkpoint struct {
	Cache *reuse.Cache // nil: it needs no items
	Do    reuse.Do
	Disk  *disk.Store // nil: there is none
}

// space returns a function that reports the space on disk, or nil if there is no disk.
func (c *Checkpoint) space() func() schedule.Space {
	if c.Disk == nil {
		return nil
	}
	return func() schedule.Space {
		s := c.Disk.Stats()
		return schedule.Space{Used: s.LiveBytes, Total: s.Budget}
	}
}

// Take returns the checkpoint that serves a model. The caller MUST call release.
type Take func() (c Checkpoint, release func())

// Hot is an item and how many requests named it.
type Hot struct {
	ID    string
	Asked int64
}

// Options configure an Indexer.
type Options struct {
	Catalog *catalog.Catalog
	Hot     func() []Hot // items that requests named, the most named first
	Off     bool         // make passes only when someone asks
	// Share returns the part of the catalog that this process computes, where several divide it; nil: it computes all.
	Share func(model string) Share
	Log   *slog.Logger
}

// Share is a part of a catalog. The zero value is all of it.
type Share struct {
	Epoch uint64               // of the division; another one starts a full pass
	Mine  func(id string) bool // reports whether an item belongs to the part; nil: all do
	Hot   []string             // items that all processes compute, the hottest first; Mine has them too
	Wait  bool                 // the part is not known yet: passes wait
}

// share returns the part of a model.
func (o *Options) share(model string) Share {
	if o.Share == nil {
		return Share{}
	}
	return o.Share(model)
}

// Indexer makes the passes of all models. It is safe for concurrent use.
type Indexer struct {
	opt     Options
	models  []*model
	changes atomic.Int64 // of items
}

// New returns an Indexer without models.
func New(opt Options) *Indexer {
	x := &Indexer{opt: opt}
	opt.Catalog.Subscribe(func(c catalog.Change) {
		if c.OldItem != nil || c.NewItem != nil {
			x.changes.Add(1)
		}
	})
	return x
}

// Add adds a model. It MUST be called before Run.
func (x *Indexer) Add(name string, take Take) {
	x.models = append(x.models, &model{
		Indexer: x, name: name, take: take, asked: make(chan struct{}, 1), now: Progress{Model: name, State: Idle},
	})
}

// Run makes passes until ctx ends.
func (x *Indexer) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, m := range x.models {
		wg.Go(func() { m.run(ctx) })
	}
	wg.Wait()
}

// ErrNoModel means that no model of that name keeps items.
var ErrNoModel = errors.New("no such model keeps items")

// Ask starts a full pass of a model, or of all models if the name is empty. It does nothing for a model whose pass is
// under way.
func (x *Indexer) Ask(name string) error {
	found := false
	for _, m := range x.models {
		if name != "" && m.name != name {
			continue
		}
		found = true
		m.ask()
	}
	if !found {
		return ErrNoModel
	}
	return nil
}

// State is the state of a model's full pass.
type State string

const (
	Idle      State = "idle"      // no pass was made yet
	Waiting   State = "waiting"   // a pass begins as soon as there is time
	Computing State = "computing" // a pass is under way
	Done      State = "done"      // all items are cached
	Full      State = "full"      // there is no room for more
	Failed    State = "failed"    // the last pass failed; another one begins soon
)

var states = []State{Idle, Waiting, Computing, Done, Full, Failed}

// Running reports whether a pass is under way or about to begin.
func (s State) Running() bool { return s == Waiting || s == Computing }

// Progress describes the last full pass of a model.
type Progress struct {
	Model    string  `json:"model"`
	State    State   `json:"state"`
	Items    int     `json:"items"`              // of the catalog, or of this process's part of it
	Left     int     `json:"left"`               // items that were not looked at
	Computed int     `json:"computed"`           // items; the others were cached, or have no tokens for the model
	Fetched  int     `json:"fetched,omitempty"`  // items that came from other nodes
	TooLong  int     `json:"too_long,omitempty"` // items that the model, or the memory, has no room for
	Failed   int     `json:"failed,omitempty"`   // items that an error left out; the log says which error
	Tokens   int     `json:"tokens"`             // of the computed items
	Seconds  float64 `json:"seconds"`            // since it began, or that it took
	Error    string  `json:"error,omitempty"`

	began time.Time
}

// Progress returns the progress of all models that keep items.
func (x *Indexer) Progress() []Progress {
	out := make([]Progress, 0, len(x.models))
	for _, m := range x.models {
		out = append(out, m.progress())
	}
	return out
}

// model makes the passes of one model.
type model struct {
	*Indexer
	name  string
	take  Take
	asked chan struct{} // holds a value if a full pass was requested

	// The inputs and the end of the last full pass. Only run uses them.
	cache *reuse.Cache
	seen  int64 // changes of items
	epoch uint64
	hot   []Hot
	ended time.Time
	took  time.Duration

	mu            sync.Mutex
	now           Progress
	items, tokens int64 // computed since the start
}

// ask requests a full pass, unless one is under way.
func (m *model) ask() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.now.State.Running() {
		m.request()
	}
}

// again starts another full pass after one that was interrupted.
func (m *model) again() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.request()
}

// request makes run start a full pass. The caller holds the lock.
func (m *model) request() {
	m.now.State = Waiting
	select {
	case m.asked <- struct{}{}:
	default:
	}
}

func (m *model) progress() Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.now
	if p.State == Computing {
		p.Seconds = time.Since(p.began).Seconds()
	}
	return p
}

func (m *model) set(f func(p *Progress)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.now)
}

const (
	// lookEvery is how often a model checks whether another pass is due.
	lookEvery = 5 * time.Second
	// retryAfter is the time between a failed pass and the next one.
	retryAfter = 30 * time.Second
	// restFor limits full passes to about 1/20 of the time: the next one waits this many times the duration of the last.
	// Ask does not wait.
	restFor = 20
)

func (m *model) run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	asked := false
	for {
		switch m.due(asked) {
		case fullPass:
			asked = false
			m.full(ctx)
		case hotPass:
			m.hottest(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-m.asked:
			asked = true
		case <-tick.C:
		}
	}
}

// pass is a kind of pass.
type pass uint8

const (
	noPass pass = iota
	hotPass
	fullPass
)

// fresh counts the ids of now that before does not have.
func fresh(before, now []Hot) (n int) {
	for _, h := range now {
		if !slices.ContainsFunc(before, func(b Hot) bool { return b.ID == h.ID }) {
			n++
		}
	}
	return n
}
