package disk

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
)

const sector = 512

// memFolder is a folder in memory that knows which bytes a power cut may take, counts the space its
// files hold, and fails on demand.
type memFolder struct {
	mu      sync.Mutex
	files   map[string]*memFile
	durable map[string]*memFile // names as of the last Sync
	holes   bool
	cut     bool                  // after a power cut records may have holes that the store counts
	ghosts  []*memFile            // removed while open
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
	f := &memFile{dir: d, blocks: map[int64]bool{}, past: map[int64][][]byte{}}
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
	d.durable = map[string]*memFile{}
	for n, f := range d.files {
		d.durable[n] = f
	}
	return nil
}

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
		b = append(b, f.data...)
	}
	return b
}

// powerCut returns what a disk may show afterwards: every sector as of the last Sync or as of any write
// since, every file there or not if that is not durable.
func (d *memFolder) powerCut(r *rand.Rand) *memFolder {
	c := newMemFolder(d.t, d.holes)
	c.cut = true
	names := map[string]bool{}
	for n := range d.files {
		names[n] = true
	}
	for n := range d.durable {
		names[n] = true
	}
	for _, n := range slices.Sorted(func(yield func(string) bool) {
		for n := range names {
			if !yield(n) {
				return
			}
		}
	}) {
		f, old := d.files[n], d.durable[n]
		if f != old && r.IntN(2) == 0 {
			f = old
		}
		if f != nil {
			c.files[n] = f.survivor(c, r)
		}
	}
	c.durable = map[string]*memFile{}
	for n, f := range c.files {
		c.durable[n] = f
	}
	return c
}

// copyOf returns the folder as a killed process leaves it.
func (d *memFolder) copyOf() *memFolder {
	c := newMemFolder(d.t, d.holes)
	for n, f := range d.files {
		g := &memFile{dir: c, data: slices.Clone(f.data), blocks: map[int64]bool{}, past: map[int64][][]byte{}}
		for b := range f.blocks {
			g.blocks[b] = true
		}
		c.files[n], c.durable[n] = g, g
	}
	return c
}

type memFile struct {
	dir    *memFolder
	data   []byte
	blocks map[int64]bool     // that take space
	past   map[int64][][]byte // what each sector was since the last Sync
	sizes  []int64            // likewise the size
	open   int
	bad    bool // reads fail
}

func (f *memFile) held() int64 {
	if f.dir.holes {
		return int64(len(f.blocks)) * block
	}
	return roundUp(int64(len(f.data)), block)
}

func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	if f.bad {
		return 0, syscall.EIO
	}
	if off >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// remember keeps the sectors of a range that is about to change.
func (f *memFile) remember(off, end int64) {
	for s := off / sector; s*sector < end; s++ {
		was := make([]byte, sector)
		if s*sector < int64(len(f.data)) {
			copy(was, f.data[s*sector:])
		}
		f.past[s] = append(f.past[s], was)
	}
}

func (f *memFile) resize(n int64) {
	f.sizes = append(f.sizes, int64(len(f.data)))
	if n <= int64(len(f.data)) {
		f.remember(n, int64(len(f.data)))
		f.data = f.data[:n:n]
		for b := range f.blocks {
			if b*block >= n {
				delete(f.blocks, b)
			}
		}
		return
	}
	f.data = append(f.data, make([]byte, n-int64(len(f.data)))...)
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
	f.remember(off, end)
	if end > int64(len(f.data)) {
		f.resize(end)
	}
	copy(f.data[off:], b)
	for blk := off / block; blk*block < end; blk++ {
		f.blocks[blk] = true
	}
	f.dir.checkBudget()
	return len(b), err
}

func (f *memFile) Size() (int64, error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	return int64(len(f.data)), nil
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

func (f *memFile) Punch(off, n int64) error {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	if !f.dir.holes {
		return errors.ErrUnsupported
	}
	if err := f.dir.check("punch"); err != nil {
		return err
	}
	end := min(off+n, int64(len(f.data)))
	if end > off {
		f.remember(off, end)
		clear(f.data[off:end])
	}
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
	for blk := off / block; blk*block < int64(len(f.data)); blk++ {
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
		return err
	}
	f.past, f.sizes = map[int64][][]byte{}, nil
	return nil
}

func (f *memFile) Close() error {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	f.open--
	return nil
}

func (f *memFile) survivor(d *memFolder, r *rand.Rand) *memFile {
	g := &memFile{dir: d, data: slices.Clone(f.data), blocks: map[int64]bool{}, past: map[int64][][]byte{}}
	if n := len(f.sizes); n > 0 {
		if i := r.IntN(n + 1); i < n {
			g.resize(f.sizes[i])
		}
	}
	oldest := r.IntN(3) == 0 // nothing but the size got through
	for s := int64(0); s*sector < int64(len(g.data)); s++ {
		if old := f.past[s]; len(old) > 0 {
			if i := r.IntN(len(old) + 1); oldest {
				copy(g.data[s*sector:], old[0])
			} else if i < len(old) {
				copy(g.data[s*sector:], old[i])
			}
		}
	}
	for b := range (int64(len(g.data)) + block - 1) / block {
		if f.blocks[b] || !zero(g.data[b*block:min((b+1)*block, int64(len(g.data)))]) {
			g.blocks[b] = true
		}
	}
	g.past, g.sizes = map[int64][][]byte{}, nil
	return g
}

// skipUnderRace skips long tests of one goroutine when only races are looked for.
func skipUnderRace(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine: nothing for the race detector to find")
	}
}
