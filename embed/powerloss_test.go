package embed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"grebe/internal/durable"
	"grebe/internal/durable/durabletest"
)

// sequences returns how many random sequences a power-loss test tries: few in a test run, GREBE_POWERLOSS of them in
// `make powerloss`.
func sequences(few uint64) uint64 {
	n, err := strconv.ParseUint(os.Getenv("GREBE_POWERLOSS"), 10, 64)
	if err != nil {
		return few
	}
	return n
}

// rowBook is what a table owes its caller: the rows that were acknowledged, 0 for deleted, and those under way.
type rowBook struct {
	mu       sync.Mutex
	sure     map[uint64]float32
	underWay map[uint64]float32
}

func (b *rowBook) copy() *rowBook {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &rowBook{sure: maps.Clone(b.sure), underWay: maps.Clone(b.underWay)}
}

func (b *rowBook) set(m *map[uint64]float32, key uint64, v float32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	(*m)[key] = v
}

const lossRows = 12

// lossTable opens the table on a disk.
func lossTable(t *testing.T, d *durabletest.Disk) (*Folder, *Pebble) {
	t.Helper()
	f, err := openFolder("tables", d.FS())
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Table("items", 512)
	if err != nil {
		t.Fatal(err)
	}
	return f, p
}

func lossRow(v float32) []byte {
	row := make([]byte, 0, 512)
	for len(row) < 512 {
		row = binary.LittleEndian.AppendUint32(row, math.Float32bits(v))
	}
	return row
}

// checkRows compares a table with what was acknowledged, and what is there then is sure.
func (b *rowBook) checkRows(t *testing.T, p *Pebble, what string) {
	t.Helper()
	for key := range uint64(lossRows) {
		row, found := make([]byte, 512), make([]bool, 1)
		if err := p.Gather(t.Context(), []uint64{key}, row, found); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		v := math.Float32frombits(binary.LittleEndian.Uint32(row))
		if !found[0] {
			v = 0
		}
		if want, trying := b.sure[key], b.underWay[key]; v != want && (trying == 0 || v != max(trying, 0)) {
			t.Fatalf("%s: row %d is %v, want %v (%v was under way)", what, key, v, want, trying)
		}
		b.sure[key] = v
	}
	clear(b.underWay)
}

// Rows of a table in Pebble: a kill, a power cut, and both in turn, at every change of a file or a folder.
func TestTablesSurviveKillsAndPowerCuts(t *testing.T) {
	t.Parallel()
	for seed := range sequences(3) {
		r := rand.New(rand.NewPCG(seed, 31))
		d := durabletest.NewDisk()
		if err := d.FS().MkdirAll("tables", 0o700); err != nil {
			t.Fatal(err)
		}
		d = d.Kill() // the folder is there, and OpenFolder makes it durable
		root, err := d.FS().OpenDir("")
		if err != nil || root.Sync() != nil {
			t.Fatal(err)
		}
		b := &rowBook{sure: map[uint64]float32{}, underWay: map[uint64]float32{}}
		for life := range 4 {
			what := fmt.Sprintf("seed %d, life %d", seed, life)
			d, b = b.live(t, d, r, what)
		}
	}
}

// live opens the table, checks it and changes rows. It tries a power cut at each of its changes, and returns what one of
// them, or a kill, leaves.
func (b *rowBook) live(t *testing.T, d *durabletest.Disk, r *rand.Rand, what string) (*durabletest.Disk, *rowBook) {
	t.Helper()
	type moment struct {
		disk *durabletest.Disk
		book *rowBook
		at   string
	}
	var mu sync.Mutex
	var moments []moment
	every := 1 + r.IntN(4)
	n := 0
	d.Before = func(kind durable.Kind, path string) error {
		mu.Lock()
		defer mu.Unlock()
		if n++; n%every == 0 {
			book := b.copy() // before the disk: what is acknowledged meanwhile is none of its business
			moments = append(moments, moment{d.Kill(), book, fmt.Sprintf("%s: before change %d, %s of %s", what, n, kind, path)})
		}
		return nil
	}
	f, p := lossTable(t, d)
	b.checkRows(t, p, what)
	for range 12 {
		key := uint64(r.IntN(lossRows))
		switch v := float32(1 + r.IntN(1<<20)); {
		case r.IntN(8) == 0:
			if err := f.db.Flush(); err != nil {
				t.Fatal(err)
			}
		case r.IntN(3) == 0:
			b.set(&b.underWay, key, -1)
			if err := p.Delete(t.Context(), []uint64{key}); err != nil {
				t.Fatal(err)
			}
			b.set(&b.sure, key, 0)
			b.set(&b.underWay, key, 0)
		default:
			b.set(&b.underWay, key, v)
			if err := p.Put(t.Context(), []uint64{key}, lossRow(v)); err != nil {
				t.Fatal(err)
			}
			b.set(&b.sure, key, v)
			b.set(&b.underWay, key, 0)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	d.Before = nil
	mu.Lock()
	defer mu.Unlock()
	for i, m := range moments {
		if testing.Short() && i%8 != 0 {
			continue
		}
		for _, how := range []*rand.Rand{nil, r} {
			f, p := lossTable(t, m.disk.Cut(how))
			m.book.copy().checkRows(t, p, m.at+": a power cut")
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	m := moments[r.IntN(len(moments))]
	if r.IntN(2) == 0 {
		return m.disk.Cut(r), m.book
	}
	return m.disk, m.book // killed
}

// A sync of the log that fails is an error of the call that waits for it, and leaves clean pages: the next process sees
// the row, and must not acknowledge anything that hangs on it without writing it again.
func TestTablesSurviveFailedSyncs(t *testing.T) {
	t.Parallel()
	for at := 1; at <= 8; at++ {
		d := durabletest.NewDisk()
		if err := d.FS().MkdirAll("tables", 0o700); err != nil {
			t.Fatal(err)
		}
		if root, err := d.FS().OpenDir(""); err != nil || root.Sync() != nil {
			t.Fatal(err)
		}
		_, p := lossTable(t, d) // never closed: its disk fails
		var mu sync.Mutex
		syncs := 0
		d.Before = func(kind durable.Kind, path string) error {
			mu.Lock()
			defer mu.Unlock()
			if kind == durable.OpSync && strings.HasSuffix(path, ".log") {
				if syncs++; syncs >= at {
					return syscall.EIO
				}
			}
			return nil
		}
		b := &rowBook{sure: map[uint64]float32{}, underWay: map[uint64]float32{}}
		for i := 1; b.underWay[0] == 0; i++ {
			if err := p.Put(t.Context(), []uint64{0}, lossRow(float32(i))); err != nil {
				b.underWay[0] = float32(i)
			} else {
				b.sure[0] = float32(i)
			}
		}
		if b.sure[0] != float32(at-1) {
			t.Fatalf("sync %d fails: the last row acknowledged is %v", at, b.sure[0])
		}
		what := fmt.Sprintf("sync %d of the log failed", at)
		f, p := lossTable(t, d.Cut(nil))
		b.copy().checkRows(t, p, what+", then a power cut")
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		// The next process opens what is visible, goes on, and then comes the power cut.
		next := d.Kill()
		f, p = lossTable(t, next)
		b.checkRows(t, p, what+", then a restart")
		if err := p.Put(t.Context(), []uint64{1}, lossRow(77)); err != nil {
			t.Fatal(err)
		}
		b.sure[1] = 77
		again, q := lossTable(t, next.Cut(nil))
		b.checkRows(t, q, what+", then a restart and a power cut")
		if err := errors.Join(f.Close(), again.Close()); err != nil {
			t.Error(err)
		}
	}
}
