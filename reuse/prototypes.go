package reuse

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"

	"grebe/engine"
	"grebe/kv"
	"grebe/kv/proto"
	"grebe/plan"
)

// Prototypes is a model's semantic history pool (RCL-2): an index that finds prototypes for tokens of histories, and
// pages of their KV, which are entries of the store as items are. It is safe for concurrent use.
type Prototypes struct {
	cache *Cache
	file  string

	mu    sync.RWMutex // held for writing while the index changes
	index *proto.Index
	keys  []plan.Key // of pages
	stale bool       // the file could not be written and still has dropped users
	left  []plan.Key // pages of dropped users that could not be deleted
}

// PrototypesFile returns the file of a model's index.
func PrototypesFile(dataDir, model string) string {
	return filepath.Join(dataDir, "prototypes", url.PathEscape(model)+".proto")
}

// ErrOtherModel means that prototypes or importance were made with other weights, another preamble or another KV
// format.
var ErrOtherModel = errors.New("reuse: it was made for another model")

// OpenPrototypes opens the index in a file. If there is none, the error is fs.ErrNotExist. The caller MUST Close it
// after all matches are released.
func (c *Cache) OpenPrototypes(file string) (*Prototypes, error) {
	x, err := proto.Open(file)
	if err != nil {
		return nil, fmt.Errorf("reuse: %w", err)
	}
	if x.Model() != c.prototypeSpace() {
		return nil, errors.Join(fmt.Errorf("%w: %s", ErrOtherModel, file), x.Close())
	}
	return c.prototypes(file, x), nil
}

func (c *Cache) prototypes(file string, x *proto.Index) *Prototypes {
	p := &Prototypes{cache: c, file: file, index: x, keys: make([]plan.Key, (x.Len()+proto.Page-1)/proto.Page)}
	for _, g := range x.Generations() {
		for i := 0; i < g.Len; i += proto.Page {
			// A page's key depends on its generation and its place there. So later generations do not change it.
			id := hex.EncodeToString(g.Digest[:]) + " " + strconv.Itoa(i/proto.Page)
			p.keys[(g.First+i)/proto.Page] = kv.KeyOf(c.prototypeSpace(), nil, id)
		}
	}
	return p
}

// prototypeSpace is the context of prototypes' keys: everything that their KV depends on except the histories.
func (c *Cache) prototypeSpace() plan.Key { return kv.KeyOf(c.preamble.key, nil, "prototypes") }

// source returns a user's number in an index.
func (c *Cache) source(userID string) uint64 {
	key := kv.KeyOf(c.userSpace, nil, "source of prototypes "+userID)
	return binary.LittleEndian.Uint64(key[:])
}

// Close frees the index's memory.
func (p *Prototypes) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.index.Close()
}

// Len returns the number of prototypes.
func (p *Prototypes) Len() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.index.Len()
}

// DropUser removes the pages with prototypes of a user's history from every tier. Other prototypes in these pages are
// not found until the pool is built again.
func (p *Prototypes) DropUser(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, page := range p.index.Remove(p.cache.source(id)) {
		p.left, p.stale = append(p.left, p.keys[page]), true
	}
	if !p.stale {
		return nil
	}
	// The file is written last: after a crash the next process needs it to find the pages.
	if err := p.cache.opt.Store.Delete(p.left...); err != nil {
		return err
	}
	p.left = nil
	err := p.index.Write(p.file)
	p.stale = err != nil
	return err
}

// Matches are the prototypes of one request. The zero value is ready. It can be reused after Release.
type Matches struct {
	from    *Prototypes
	scratch proto.Scratch
	found   []proto.Match
	runs    []run
	pages   map[int32]*kv.Entry // pinned; nil: on disk, or in no tier
	drift   []float32
	tokens  int
}

// run is a run of tokens that are consecutive in both a page and the history.
type run struct {
	at, tokens  int
	page, first int32
	turn        int
}

// Find looks up prototypes for the tokens user[from:] of a user's segment that begins at position start. It takes those
// with a drift of at most most; 0 means all. It pins pages that are in memory.
func (p *Prototypes) Find(m *Matches, user []int32, from, start int, most float32) {
	if most == 0 {
		most = 1
	}
	m.from, m.tokens, m.runs = p, 0, m.runs[:0]
	m.found, m.drift = resize(m.found, len(user)), resize(m.drift, len(user))
	if m.pages == nil {
		m.pages = map[int32]*kv.Entry{}
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	p.index.Match(&m.scratch, user, from, most, m.found)
	base := len(p.cache.preamble.tokens)
	for i, f := range m.found {
		m.drift[i] = f.Drift
		if f.Prototype < 0 {
			continue
		}
		page, place := f.Prototype/proto.Page, f.Prototype%proto.Page
		if !m.has(page) {
			continue
		}
		m.tokens++
		turn := start + i - base - int(p.index.Prototype(int(f.Prototype)).Place)
		if n := len(m.runs); n > 0 {
			if r := &m.runs[n-1]; r.at+r.tokens == i && r.page == page && int(r.first)+r.tokens == int(place) && r.turn == turn {
				r.tokens++
				continue
			}
		}
		m.runs = append(m.runs, run{at: i, tokens: 1, page: page, first: place, turn: turn})
	}
}

// has pins a page, and reports whether any tier has it.
func (m *Matches) has(page int32) bool {
	e, known := m.pages[page]
	if !known {
		e, _ = m.from.cache.get(m.from.keys[page])
		m.pages[page] = e
	}
	return e != nil || m.from.cache.opt.Store.Below(m.from.keys[page])
}

// Tokens returns the number of tokens that have a prototype.
func (m *Matches) Tokens() int { return m.tokens }

// Append appends the matches as parts of a segment, in ascending order. The entry of a part whose page is on disk is
// nil until Fetch.
func (m *Matches) Append(dst []engine.Part, segment int) []engine.Part {
	for _, r := range m.runs {
		dst = append(dst, engine.Part{
			Segment: segment, At: r.at, Tokens: r.tokens, Entry: m.pages[r.page], First: int(r.first), Turn: r.turn,
			Source: plan.Prototype, Drift: m.drift[r.at : r.at+r.tokens],
		})
	}
	return dst
}

// Fetch loads pages from disk and sets the entries of the parts that Append appended. Parts whose page does not arrive
// are computed. Requests do not use it: their pages are read concurrently, see wanted.
func (m *Matches) Fetch(parts []engine.Part) {
	for i := range parts {
		if parts[i].Entry != nil || i >= len(m.runs) {
			continue
		}
		page := m.runs[i].page
		if m.pages[page] == nil {
			m.pages[page] = m.from.cache.fetch(context.Background(), m.from.keys[page])
		}
		parts[i].Entry = m.pages[page]
	}
}

// wanted appends the pages on disk, with the parts of a job that they replace. first is the index of the first part
// from Append.
func (m *Matches) wanted(dst []wanted, first int) []wanted {
	at := map[int32]int{}
	for i, r := range m.runs {
		if m.pages[r.page] != nil {
			continue
		}
		k, ok := at[r.page]
		if !ok {
			k = len(dst)
			at[r.page] = k
			dst = append(dst, wanted{key: m.from.keys[r.page], tokens: proto.Page})
		}
		dst[k].parts = append(dst[k].parts, first+i)
	}
	return dst
}

// Release releases the pages. It MUST be called when the job is done.
func (m *Matches) Release() {
	for page, e := range m.pages {
		if e != nil {
			e.Release()
		}
		delete(m.pages, page)
	}
	m.runs, m.tokens = m.runs[:0], 0
}
