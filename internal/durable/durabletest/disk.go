package durabletest

import (
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"grebe/internal/durable"
)

// Disk is a tree of files and folders with a page cache before it. It is safe for concurrent use.
type Disk struct {
	// Before is asked before each change; an error refuses it. A sync that it refuses has failed: its pages are clean. The
	// disk is not locked meanwhile, so that Before may call Kill and Cut. Set it before the disk is used.
	Before func(kind durable.Kind, path string) error

	mu    sync.Mutex
	root  *node
	locks map[string]bool
}

// node is a file or a folder.
type node struct {
	pages   Pages
	names   map[string]*node // of a folder; nil: it is a file
	durable map[string]*node // likewise, as of the folder's last sync
	changes []change         // since then, in order
}

// change is a name that came, went (to is nil) or names something else.
type change struct {
	name string
	to   *node
}

// set changes what a name in a folder means; nil: nothing.
func (n *node) set(name string, to *node) {
	n.changes = append(n.changes[:len(n.changes):len(n.changes)], change{name, to})
	if to == nil {
		delete(n.names, name)
		return
	}
	n.names[name] = to
}

func newFolder() *node { return &node{names: map[string]*node{}, durable: map[string]*node{}} }

// NewDisk returns an empty disk.
func NewDisk() *Disk { return &Disk{root: newFolder(), locks: map[string]bool{}} }

// Kill returns the disk as the next process finds it when this one is killed now: all is there, and no more of it is
// durable than before. The disk itself goes on, so that what runs on it need not be stopped.
func (d *Disk) Kill() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := NewDisk()
	c.root = d.root.clone(map[*node]*node{})
	return c
}

// Cut returns what a power cut may leave now. Without r nothing that is not durable is left; with it any part may be.
func (d *Disk) Cut(r *rand.Rand) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := NewDisk()
	c.root = d.root.cut(r, map[*node]*node{})
	return c
}

func (n *node) clone(seen map[*node]*node) *node {
	if c := seen[n]; c != nil {
		return c
	}
	c := &node{}
	seen[n] = c
	if n.names == nil {
		c.pages = n.pages.Clone()
		return c
	}
	c.names, c.durable = map[string]*node{}, map[string]*node{}
	for name, child := range n.names {
		c.names[name] = child.clone(seen)
	}
	for name, child := range n.durable {
		c.durable[name] = child.clone(seen)
	}
	for _, ch := range n.changes {
		if ch.to != nil {
			ch.to = ch.to.clone(seen)
		}
		c.changes = append(c.changes, ch)
	}
	return c
}

func (n *node) cut(r *rand.Rand, seen map[*node]*node) *node {
	if c := seen[n]; c != nil {
		return c
	}
	c := &node{}
	seen[n] = c
	if n.names == nil {
		c.pages = n.pages.Cut(r)
		return c
	}
	// File systems journal names: what is left is the names after so many changes.
	names := maps.Clone(n.durable)
	if r != nil {
		for _, ch := range n.changes[:r.IntN(len(n.changes)+1)] {
			if names[ch.name] = ch.to; ch.to == nil {
				delete(names, ch.name)
			}
		}
	}
	c.names = map[string]*node{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		c.names[name] = names[name].cut(r, seen)
	}
	c.durable = maps.Clone(c.names)
	return c
}

// elements returns the names along a path.
func elements(path string) []string {
	return strings.FieldsFunc(filepath.ToSlash(filepath.Clean(path)), func(r rune) bool { return r == '/' })
}

// find returns what a path names; nil if nothing. The caller holds mu.
func (d *Disk) find(path string) *node {
	n := d.root
	for _, e := range elements(path) {
		if e == "." {
			continue
		}
		if n = n.names[e]; n == nil {
			return nil
		}
	}
	return n
}

// parent returns the folder that a path lies in, and its name there. The caller holds mu.
func (d *Disk) parent(path string) (*node, string, error) {
	dir, name := filepath.Split(filepath.Clean(path))
	n := d.find(dir)
	if n == nil || n.names == nil {
		return nil, "", &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return n, name, nil
}

func (d *Disk) ask(kind durable.Kind, path string) error {
	if d.Before == nil {
		return nil
	}
	return d.Before(kind, path)
}

// change asks, then changes with the disk locked.
func (d *Disk) change(kind durable.Kind, path string, f func() error) error {
	if err := d.ask(kind, path); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return f()
}

// create returns the file of a name, which it makes if it is not there; fresh makes another file in its place.
func (d *Disk) create(path string, fresh bool) (n *node, err error) {
	err = d.change(durable.OpOpen, path, func() error {
		dir, name, err := d.parent(path)
		if err != nil {
			return err
		}
		if n = dir.names[name]; n == nil || fresh {
			n = &node{}
			dir.set(name, n)
		}
		return nil
	})
	return n, err
}

func (d *Disk) write(n *node, path string, b []byte, off int64) error {
	return d.change(durable.OpWrite, path, func() error { n.pages.WriteAt(b, off); return nil })
}

func (d *Disk) truncate(n *node, path string, size int64) error {
	return d.change(durable.OpTruncate, path, func() error { n.pages.Resize(size); return nil })
}

func (d *Disk) sync(n *node, path string) error {
	if err := d.ask(durable.OpSync, path); err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		n.pages.FailSync()
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n.pages.Sync()
	return nil
}

func (d *Disk) rename(from, to string) error {
	return d.change(durable.OpRename, from, func() error {
		dir, name, err := d.parent(from)
		if err != nil {
			return err
		}
		n := dir.names[name]
		target, as, err := d.parent(to)
		if err != nil {
			return err
		}
		if n == nil {
			return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
		}
		target.set(as, n)
		dir.set(name, nil)
		return nil
	})
}

func (d *Disk) remove(path string) error {
	return d.change(durable.OpRemove, path, func() error {
		dir, name, err := d.parent(path)
		if err != nil {
			return err
		}
		if dir.names[name] == nil {
			return &fs.PathError{Op: "remove", Path: path, Err: fs.ErrNotExist}
		}
		dir.set(name, nil)
		return nil
	})
}

func (d *Disk) mkdir(path string) error {
	return d.change(durable.OpMkdir, path, func() error {
		dir, name, err := d.parent(path)
		if err != nil {
			return err
		}
		if dir.names[name] == nil {
			dir.set(name, newFolder())
		}
		return nil
	})
}

func (d *Disk) syncDir(path string) error {
	return d.change(durable.OpSyncDir, path, func() error {
		n := d.find(path)
		if n == nil || n.names == nil {
			return &fs.PathError{Op: "sync", Path: path, Err: fs.ErrNotExist}
		}
		n.durable, n.changes = maps.Clone(n.names), nil
		return nil
	})
}

// Contents returns what all files that can be seen contain, one after the other.
func (d *Disk) Contents() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []byte
	d.root.walk("", func(_ string, n *node) { all = append(all, n.pages.Data...) })
	return all
}

// Files returns the names of all files that can be seen.
func (d *Disk) Files() (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.root.walk("", func(path string, n *node) {
		if n.names == nil {
			names = append(names, path)
		}
	})
	return names
}

// walk visits what is below a folder, in order.
func (n *node) walk(path string, f func(path string, n *node)) {
	for _, name := range slices.Sorted(maps.Keys(n.names)) {
		child := n.names[name]
		f(filepath.Join(path, name), child)
		child.walk(filepath.Join(path, name), f)
	}
}

// Mount writes what can be seen to a real folder, and from then on follows what package durable changes there. The
// folder itself is durable. Call stop before the folder goes.
func (d *Disk) Mount(dir string) (stop func(), err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.root.walk("", func(path string, n *node) {
		if err != nil {
			return
		}
		if full := filepath.Join(dir, path); n.names != nil {
			err = os.MkdirAll(full, 0o700)
		} else {
			err = os.WriteFile(full, n.pages.Data, 0o600)
		}
	})
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return durable.Watch(dir, &mount{d: d, dir: dir, open: map[*durable.File]*node{}})
}

// mount applies changes of real files to a disk.
type mount struct {
	d   *Disk
	dir string

	mu   sync.Mutex
	open map[*durable.File]*node
}

// Do implements durable.Watcher. The disk changes before the folder does: what is refused is done to neither.
func (m *mount) Do(op durable.Op, run func() error) error {
	path := m.inside(op.Path)
	m.mu.Lock()
	n := m.open[op.File]
	m.mu.Unlock()
	var err error
	switch op.Kind {
	case durable.OpOpen:
		if n, err = m.d.create(path, false); err == nil && op.Truncate {
			err = m.d.truncate(n, path, 0)
		}
		m.mu.Lock()
		m.open[op.File] = n
		m.mu.Unlock()
	case durable.OpWrite:
		err = m.d.write(n, path, op.Data, op.Off)
	case durable.OpTruncate:
		err = m.d.truncate(n, path, op.Off)
	case durable.OpSync:
		if err = m.d.sync(n, path); err == nil {
			return nil // a real sync would only take time
		}
	case durable.OpRename:
		err = m.d.rename(path, m.inside(op.To))
	case durable.OpRemove:
		err = m.d.remove(path)
	case durable.OpMkdir:
		err = m.d.mkdir(path)
	case durable.OpSyncDir:
		if err = m.d.syncDir(path); err == nil {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return run()
}

// inside returns a path below the mounted folder.
func (m *mount) inside(path string) string {
	rel, err := filepath.Rel(m.dir, path)
	if err != nil {
		return path
	}
	return rel
}
