package history

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"grebe/internal/durable"
)

// restore reads what the folder has. The newest generation that can be read becomes the current one; of
// older ones only the versions are listed until one of them is asked for.
func (h *History) restore(version uint64) error {
	numbers, err := generations(h.opt.Dir)
	if err != nil {
		return err
	}
	for _, number := range slices.Backward(numbers) {
		g := &Generation{dir: h.opt.Dir, begun: head{number: number}}
		read := g.list
		if h.current == nil {
			read = g.resume
		}
		versions, err := read(h)
		if err != nil && !errors.Is(err, ErrDamaged) {
			return errors.Join(err, h.close())
		}
		if err != nil {
			h.hurt(g.file("items"), err)
			if err := g.remove(); err != nil {
				return err
			}
			continue
		}
		if h.current == nil {
			h.current = g
		} else { // what the next generation begins with ends this one's log
			next := h.versions[0].Number
			versions = slices.DeleteFunc(versions, func(v *Version) bool { return v.Number >= next })
		}
		h.versions = append(versions, h.versions...)
	}
	if n := len(h.versions); n > 0 && h.versions[n-1].Number > version {
		h.hurt(h.opt.Dir, fmt.Errorf("version %d is later than the catalog's, %d: it belongs to another catalog",
			h.versions[n-1].Number, version))
		return h.discard()
	}
	return nil
}

// discard removes everything.
func (h *History) discard() error {
	err := h.current.close()
	gone := map[*Generation]bool{}
	for _, v := range h.versions {
		if !gone[v.gen] {
			gone[v.gen] = true
			err = errors.Join(err, v.gen.remove())
		}
	}
	h.current, h.versions = nil, nil
	return err
}

// generations lists those that have items, oldest first, and removes what was left half-written or
// half-removed.
func generations(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []uint64
	for _, e := range entries {
		n, ok := generationOf(e.Name())
		if ok && strings.HasPrefix(e.Name(), "items-") && !strings.HasSuffix(e.Name(), ".part") {
			out = append(out, n)
		}
	}
	for _, e := range entries {
		n, ok := generationOf(e.Name())
		if strings.HasSuffix(e.Name(), ".part") || ok && !slices.Contains(out, n) {
			err = errors.Join(err, durable.Unlink(filepath.Join(dir, e.Name())))
		}
	}
	return out, err
}

// list returns the generation's versions as its files name them.
func (g *Generation) list(h *History) ([]*Version, error) {
	f, err := os.Open(g.file("items"))
	if err != nil {
		return nil, gone(err)
	}
	defer f.Close()
	start := make([]byte, len(itemsMagic)+headSize)
	switch _, err := io.ReadFull(f, start); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	case err != nil:
		return nil, err
	}
	var ok bool
	if g.plain, ok = isPlain(string(start[:len(itemsMagic)])); !ok {
		return nil, fmt.Errorf("%w: it does not begin like a file of items", ErrDamaged)
	}
	if err := g.begin(decodeHead(start[len(itemsMagic):])); err != nil {
		return nil, err
	}
	g.baseSlots = g.total(&g.begun)
	frames, _, err := g.frames(h)
	if err != nil {
		return nil, err
	}
	out, ops, slots := []*Version{g.first()}, 0, g.baseSlots
	for i := range frames {
		f := &frames[i]
		ops, slots = ops+len(f.removed)+len(f.added), slots+len(f.added)
		out = append(out, g.version(f.head(), ops, slots))
	}
	return out, nil
}

// begin takes the head of the generation's file.
func (g *Generation) begin(begun head, err error) error {
	if err == nil && begun.number != g.begun.number {
		err = fmt.Errorf("%w: it is version %d", ErrDamaged, begun.number)
	}
	if err == nil {
		g.begun = begun
	}
	return err
}

// gone makes a file that is not there a damaged one. Others that cannot be opened are as they were.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// frames reads the log as far as it is whole; size is how far that is. A generation that was just begun
// may have none. A log that cannot be read is an error: it may be whole, and nothing is cut off.
func (g *Generation) frames(h *History) (frames []frame, size int64, err error) {
	data, err := h.opt.readFile(g.file("log"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("read %s: %w", g.file("log"), err)
	}
	frames, size, g.unsure, err = readLog(data)
	if err != nil {
		h.hurt(g.file("log"), err)
	}
	return frames, size, nil
}

// load reads the items and goes through the log, as far as both are whole, and returns the versions.
func (g *Generation) load(h *History) ([]*Version, int64, error) {
	begun, base, err := readBase(g.file("items"))
	g.plain = base.plain
	if err = g.begin(begun, gone(err)); err != nil {
		return nil, 0, err
	}
	frames, size, err := g.frames(h)
	if err != nil {
		return nil, 0, err
	}
	g.fill(base)
	out := []*Version{g.first()}
	for i := range frames {
		f := &frames[i]
		if err := g.fits(f); err != nil {
			h.hurt(g.file("log"), err)
			return out, f.at, nil
		}
		out = append(out, g.apply(f))
		g.last = f.at
	}
	return out, size, nil
}

// fits checks that a frame of a log leads from the last version to where it says.
func (g *Generation) fits(f *frame) error {
	if f.version <= g.now.number {
		return fmt.Errorf("%w: version %d after %d", ErrDamaged, f.version, g.now.number)
	}
	digest := g.now.digest
	for _, slot := range f.removed {
		if int(slot) >= g.table.Slots() || !g.lives(slot) {
			return fmt.Errorf("%w: version %d removes what is not there", ErrDamaged, f.version)
		}
		digest = digest.minus(digestOf(g.table.record(slot).content))
	}
	for _, r := range f.added {
		digest = digest.plus(digestOf(r.content))
	}
	h := f.head()
	if digest != f.digest || g.total(&h) != g.total(&g.now)+len(f.added)-len(f.removed) {
		return fmt.Errorf("%w: version %d has digest %v, want %v", ErrDamaged, f.version, digest, f.digest)
	}
	return nil
}

// resume loads a generation to go on with it.
func (g *Generation) resume(h *History) ([]*Version, error) {
	out, size, err := g.load(h)
	if err != nil {
		return nil, err
	}
	if g.log, err = durable.OpenFile(g.file("log"), false); err != nil {
		return nil, err
	}
	g.size = size
	g.stored, g.safe = true, g.now.number
	if err := errors.Join(g.secure(), durable.SyncDir(g.dir)); err != nil { // the log may be new
		return nil, errors.Join(err, g.close())
	}
	return out, nil
}

// secure makes the log durable as far as it was read. Its last frame may be the work of a process that was killed
// before its sync, or right after the sync failed. A failed sync leaves pages that no later one writes, so the frame is
// written once more. Its mark goes when it is durable.
func (g *Generation) secure() error {
	n, err := g.log.Size()
	if err == nil && n != g.size && !g.unsure {
		err = g.log.Truncate(g.size)
	}
	if err == nil && g.unsure {
		err = g.rewriteLast()
	}
	if err == nil {
		err = g.log.Sync()
	}
	if err == nil && g.unsure {
		err = g.log.Truncate(g.size)
	}
	return err
}

func (g *Generation) rewriteLast() error {
	f, err := os.Open(g.file("log"))
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, g.size-g.last)
	if _, err := f.ReadAt(b, g.last); err != nil {
		return err
	}
	_, err = g.log.WriteAt(b, g.last)
	return err
}
