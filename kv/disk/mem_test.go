package disk

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"

	"grebe/internal/durable/durabletest"
)

// memFolder is a folder in memory that knows which bytes a power cut may take, counts the space its
// files hold, and fails on demand.
type memFolder struct {
	mu      sync.Mutex
	files   map[string]*memFile
	durable map[string]*memFile // names as of the last Sync
	holes   bool
	cut     bool                  // after a power cut records may have holes that the store counts
	ghosts  []*memFile            // removed while open
	marked  uint32                // see Mark
	fail    func(op string) error // asked before each change
	budget  int64                 // checked after each change when set
	t       *testing.T
}

func newMemFolder(t *testing.T, holes bool) *memFolder {
	return &memFolder{files: map[string]*memFile{}, durable: map[string]*memFile{}, holes: holes, t: t}
}

func (d *memFolder) check(op string) error {
	if d.fail == nil {
		return nil
	}
	return d.fail(op)
}

func (d *memFolder) List() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for n := range d.files {
		names = append(names, n)
	}
	return names, nil
}

func (d *memFolder) Create(name string) (file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.check("create"); err != nil {
		return nil, err
	}
	if d.files[name] != nil {
		return nil, fs.ErrExist
	}
	f := &memFile{dir: d, blocks: map[int64]bool{}}
	d.files[name] = f
	f.open++
	return f, nil
}

func (d *memFolder) Open(name string) (file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[name]
	if f == nil {
		return nil, fs.ErrNotExist
	}
	f.open++
	return f, nil
}

func (d *memFolder) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.check("remove"); err != nil {
		return err
	}
	f := d.files[name]
	if f == nil {
		return fs.ErrNotExist
	}
	if f.open > 0 {
		d.ghosts = append(d.ghosts, f)
	}
	delete(d.files, name)
	return nil
}

func (d *memFolder) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.check("sync"); err != nil {
		return err
	}
	d.durable = maps.Clone(d.files)
	return nil
}

func (d *memFolder) Mark(segment uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.check("mark") == nil {
		d.marked = segment
	}
}

func (d *memFolder) Marked() uint32 { return d.marked }

func (d *memFolder) Punches() bool { return d.holes }
func (d *memFolder) Close() error  { return nil }

// held returns the space of all files, in bytes.
func (d *memFolder) held() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.heldLocked()
}

func (d *memFolder) heldLocked() (n int64) {
	for _, f := range d.files {
		n += f.held()
	}
	for _, f := range d.ghosts {
		if f.open > 0 {
			n += f.held()
		}
	}
	return n
}

func (d *memFolder) checkBudget() {
	if n := d.heldLocked(); d.budget > 0 && n > d.budget && !d.t.Failed() {
		d.t.Errorf("files hold %d bytes, budget %d", n, d.budget)
	}
}

// all returns the contents of all files, one after the other.
func (d *memFolder) all() []byte {
	var b []byte
	for _, f := range d.files {
		b = append(b, f.Data...)
	}
	return b
}

// powerCut returns what a disk may show afterwards: every sector as of the last Sync or as of any write since, every
// file there or not if that is not durable. Without r all that is not durable is gone.
func (d *memFolder) powerCut(r *rand.Rand) *memFolder {
	c := newMemFolder(d.t, d.holes)
	c.cut = true
	names := maps.Clone(d.files)
	maps.Copy(names, d.durable)
	for _, n := range slices.Sorted(maps.Keys(names)) {
		f := d.durable[n]
		if now := d.files[n]; now != f && r != nil && r.IntN(2) == 0 {
			f = now
		}
		if f != nil {
			c.files[n] = f.survivor(c, r)
		}
	}
	c.durable = maps.Clone(c.files)
	if r != nil && r.IntN(2) == 0 {
		c.marked = d.marked
	}
	return c
}

// copyOf returns the folder as a killed process leaves it: all is there, and what was not durable is not durable yet.
func (d *memFolder) copyOf() *memFolder {
	c := newMemFolder(d.t, d.holes)
	c.cut, c.marked = d.cut, d.marked
	copies := map[*memFile]*memFile{}
	copied := func(files map[string]*memFile) map[string]*memFile {
		out := map[string]*memFile{}
		for n, f := range files {
			if copies[f] == nil {
				copies[f] = &memFile{dir: c, Pages: f.Pages.Clone(), blocks: maps.Clone(f.blocks)}
			}
			out[n] = copies[f]
		}
		return out
	}
	c.files, c.durable = copied(d.files), copied(d.durable)
	return c
}

type memFile struct {
	dir *memFolder
	durabletest.Pages
	blocks map[int64]bool // that take space
	open   int
	bad    bool  // reads fail
	begun  int64 // where the last Writeback ended
}

func (f *memFile) held() int64 {
	if f.dir.holes {
		return int64(len(f.blocks)) * block
	}
	return roundUp(int64(len(f.Data)), block)
}

func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	if f.bad {
		return 0, syscall.EIO
	}
	if off >= int64(len(f.Data)) {
		return 0, io.EOF
	}
	n := copy(b, f.Data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) resize(n int64) {
	f.Pages.Resize(n)
	for b := range f.blocks {
		if b*block >= n {
			delete(f.blocks, b)
		}
	}
}

func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	err := f.dir.check("write")
	if err != nil {
		b = b[:len(b)/2] // a short write
	}
	if len(b) == 0 {
		return 0, err
	}
	end := off + int64(len(b))
	f.Pages.WriteAt(b, off)
	for blk := off / block; blk*block < end; blk++ {
		f.blocks[blk] = true
	}
	f.dir.checkBudget()
	return len(b), err
}

func (f *memFile) Size() (int64, error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	return int64(len(f.Data)), nil
}

func (f *memFile) Truncate(n int64) error {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	if err := f.dir.check("truncate"); err != nil {
		return err
	}
	f.resize(n)
	return nil
}

func (f *memFile) Writeback(off, n int64) { f.begun = off + n }

func (f *memFile) Punch(off, n int64) error {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	if !f.dir.holes {
		return errors.ErrUnsupported
	}
	if err := f.dir.check("punch"); err != nil {
		return err
	}
	f.Clear(off, n)
	for blk := off / block; blk < (off+n)/block; blk++ {
		delete(f.blocks, blk)
	}
	return nil
}

func (f *memFile) NextData(off int64) (int64, error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	if !f.dir.holes {
		return off, nil
	}
	for blk := off / block; blk*block < int64(len(f.Data)); blk++ {
		if f.blocks[blk] {
			return max(off, blk*block), nil
		}
	}
	return 0, io.EOF
}

func (f *memFile) Sync() error {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	if err := f.dir.check("sync"); err != nil {
		f.Pages.FailSync()
		return err
	}
	f.Pages.Sync()
	return nil
}

func (f *memFile) Close() error {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	f.open--
	return nil
}

func (f *memFile) survivor(d *memFolder, r *rand.Rand) *memFile {
	g := &memFile{dir: d, Pages: f.Pages.Cut(r), blocks: map[int64]bool{}}
	for b := range (int64(len(g.Data)) + block - 1) / block {
		if f.blocks[b] || !zero(g.Data[b*block:min((b+1)*block, int64(len(g.Data)))]) {
			g.blocks[b] = true
		}
	}
	return g
}

// skipUnderRace skips long tests of one goroutine when only races are looked for.
func skipUnderRace(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine: nothing for the race detector to find")
	}
}
