package embed

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"

	"grebe/internal/durable"
	"grebe/internal/durable/durabletest"
)

// rowBook is what a table owes its caller: the rows that were acknowledged, 0 for deleted, and those under way.
type rowBook struct {
	mu       sync.Mutex
	sure     map[uint64]float32
	underWay map[uint64]float32
}

// Copy implements durabletest.Lives.
func (b *rowBook) Copy() *rowBook {
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

func newRowBook() *rowBook {
	return &rowBook{sure: map[uint64]float32{}, underWay: map[uint64]float32{}}
}

// checkTable opens a table, compares it with what was acknowledged and closes it.
func checkTable(t *testing.T) func(d *durabletest.Disk, b *rowBook, what string) {
	return func(d *durabletest.Disk, b *rowBook, what string) {
		t.Helper()
		f, p := lossTable(t, d)
		b.checkRows(t, p, what)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Rows of a table in Pebble: a kill, a power cut, and both in turn, at every change of a file or a folder, right
// after a sync that fails too.
func TestTablesSurviveKillsAndPowerCuts(t *testing.T) {
	t.Parallel()
	n, campaign := durabletest.Sequences(2)
	tried := 0
	for seed := range n {
		r := rand.New(rand.NewPCG(seed, 31))
		d, b := durabletest.NewDiskWith("tables"), newRowBook()
		for life := range 4 {
			l := &durabletest.Lives[*rowBook]{Check: checkTable(t), Every: 1 + r.IntN(4)}
			if campaign && seed == 0 {
				l.Every = 1
			}
			l.Use = func(d *durabletest.Disk, b *rowBook, what string) { b.use(t, d, r, what) }
			d, b = l.Run(d, b, r, fmt.Sprintf("seed %d, life %d", seed, life))
			tried += l.Tried()
		}
	}
	t.Logf("%d sequences: opened %d times after a kill or a power cut", n, tried)
}

// use opens the table, checks it and changes rows.
func (b *rowBook) use(t *testing.T, d *durabletest.Disk, r *rand.Rand, what string) {
	t.Helper()
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
}

// A sync of the log that fails is an error of the call that waits for it, and leaves clean pages: the next process sees
// the row, and must not acknowledge anything that hangs on it without writing it again.
func TestTablesSurviveFailedSyncs(t *testing.T) {
	t.Parallel()
	for at := 1; at <= 8; at++ {
		d := durabletest.NewDiskWith("tables")
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
		b := newRowBook()
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
		checkTable(t)(d.Cut(nil), b.Copy(), what+", then a power cut")
		// The next process opens what is visible, goes on, and then comes the power cut.
		next := d.Kill()
		f, p := lossTable(t, next)
		b.checkRows(t, p, what+", then a restart")
		if err := p.Put(t.Context(), []uint64{1}, lossRow(77)); err != nil {
			t.Fatal(err)
		}
		b.sure[1] = 77
		checkTable(t)(next.Cut(nil), b, what+", then a restart and a power cut")
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
