package app

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/cuda/driver"
	"grebe/embed"
	"grebe/internal/config"
)

// apart is a CPU whose memory is apart from the host's, as a GPU's is, and which caches rows there.
type apart struct {
	compute.Device
	memory compute.Memory
}

type apartMemory struct{ compute.Memory }

func (apartMemory) Host() compute.Memory         { return compute.NewHostMemory() }
func (m apartMemory) Sizes() (free, total int64) { return 1 << 30, 1 << 30 }
func (d *apart) Memory() compute.Memory          { return d.memory }
func openApart(*config.Config, *slog.Logger) ([]compute.Device, error) {
	d, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		return nil, err
	}
	return []compute.Device{&apart{d, apartMemory{compute.NewHostMemory()}}}, nil
}

func (d *apart) Open(s compute.Shape, rows int) (compute.Runner, error) {
	r, err := d.Device.Open(s, rows)
	if err != nil {
		return nil, err
	}
	return &apartRunner{r.(compute.STU), s.Hidden}, nil
}

func (d *apart) RowCache(rows, width int, dt compute.DType, most int64) (compute.RowCache, error) {
	bytes := 4 * width
	if dt == compute.BF16 {
		bytes = 2 * width
	}
	return &apartRows{bytes: bytes, dt: dt, cached: map[int32]int{}}, nil
}

type apartRunner struct {
	compute.STU
	width int
}

func (r *apartRunner) Sum(parts []compute.SumPart) {
	for i := range parts {
		if p := &parts[i]; p.Cached != nil {
			p.Vectors = p.Cached.(*apartRows).gather(p)
			p.Cached, p.Rows = nil, append([]int32(nil), p.Rows...)
			for k := range p.Rows {
				if p.Rows[k] >= 0 {
					p.Rows[k] = int32(k)
				}
			}
		}
	}
	r.STU.Sum(parts)
}

// apartRows keeps rows in its pages, the first in the first place, as long as there are places.
type apartRows struct {
	bytes  int
	dt     compute.DType
	mu     sync.Mutex
	pages  []compute.Block
	cached map[int32]int // the place of a row
	next   int
	stats  compute.RowStats
}

const apartPage = 16 // rows

func (c *apartRows) place(at int) []byte {
	return c.pages[at/apartPage].Bytes[at%apartPage*c.bytes:][:c.bytes]
}

func (c *apartRows) gather(p *compute.SumPart) []float32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	width := c.bytes / 4
	if c.dt == compute.BF16 {
		width = c.bytes / 2
	}
	raw := make([]byte, c.bytes)
	out := make([]float32, len(p.Rows)*width)
	for i, row := range p.Rows {
		if row < 0 {
			continue
		}
		to := out[i*width:][:width]
		if at, ok := c.cached[row]; ok {
			c.stats.Hits++
			c.widen(to, c.place(at))
			continue
		}
		c.stats.Misses++
		c.stats.Fetched += int64(c.bytes)
		known := []bool{false}
		if err := p.Source.Fetch([]int32{row}, raw, known); err != nil {
			panic(err)
		}
		c.widen(to, raw)
		if known[0] && c.next < len(c.pages)*apartPage {
			c.cached[row] = c.next
			copy(c.place(c.next), raw)
			c.next++
		}
	}
	return out
}

// widen writes a row's values as float32.
func (c *apartRows) widen(to []float32, row []byte) {
	if c.dt == compute.F32 {
		copy(embed.Bytes(to), row)
		return
	}
	for i := range to {
		to[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(row[2*i:])) << 16)
	}
}

func (c *apartRows) Prefetch([]int32, compute.RowSource) {}
func (c *apartRows) PageBytes() int                      { return apartPage * c.bytes }
func (c *apartRows) Grow(pages []compute.Block) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pages = append(c.pages, pages...)
	return len(pages), nil
}
func (c *apartRows) Shrink(n int) ([]compute.Block, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keep := len(c.pages) - min(n, len(c.pages))
	gone := c.pages[keep:]
	c.pages, c.next = c.pages[:keep:keep], 0
	clear(c.cached)
	return gone, nil
}
func (c *apartRows) Close() error { return nil }
func (c *apartRows) Changed(rows []int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, row := range rows {
		delete(c.cached, row)
	}
	if rows == nil {
		clear(c.cached)
	}
}
func (c *apartRows) Stats() compute.RowStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Rows, s.Bytes = len(c.pages)*apartPage, int64(len(c.pages)*c.PageBytes())
	return s
}

// gathered returns a metric of the table "items"; −1: there is none.
func gathered(t *testing.T, a *App, name string) float64 {
	t.Helper()
	families, err := a.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.Metric[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return -1
}

// TestDeviceRows: with a part of the device's memory for rows of the item table, answers have the bits of those
// without, for first visits and for returning users, also after a row has changed, and the rest of that memory is KV's.
func TestDeviceRows(t *testing.T) {
	on := map[string]Opener{"apart": openApart}
	if n, err := driver.Count(); err == nil && n > 0 {
		on["gpu"] = nil
	}
	for name, open := range on {
		t.Run(name, func(t *testing.T) {
			path := "../testdata/fixtures/hstu/absolute"
			setting := func(rows string) *App {
				t.Helper()
				device := "cpu"
				if open == nil {
					device = "cuda"
				}
				cfg := tableOfEvents(t, path, "4MiB", config.Setting{Path: "device", Value: device},
					config.Setting{Path: "models[0].device_memory", Value: "16MiB"},
					config.Setting{Path: "models[0].device_rows", Value: rows})
				a, err := Load(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler), Open: open})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := a.Close(); err != nil {
						t.Error(err)
					}
				})
				return a
			}
			plain, cached := setting("0"), setting("25%")
			if got := gathered(t, plain, "grebe_embed_device_rows"); got != -1 {
				t.Errorf("without device_rows %v rows are reported", got)
			}
			both := func(what string, user, n int) {
				t.Helper()
				want, err1 := ranked(t.Context(), plain, visit(user, n))
				got, err2 := ranked(t.Context(), cached, visit(user, n))
				if err1 != nil || err2 != nil || want != got {
					t.Errorf("%s: %q (%v), without a cache %q (%v)", what, got, err2, want, err1)
				}
			}
			for i := range 12 {
				both(fmt.Sprintf("user %d, visit %d", i%4, i/4), i%4, i/4)
			}
			row := make([]float32, cached.tables.Table("items").Dim())
			for i := range row {
				row[i] = float32(i) / 8
			}
			before, err := ranked(t.Context(), cached, visit(9, 0))
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range []*App{plain, cached} {
				if err := a.tables.Table("items").Put(t.Context(), []uint64{5}, embed.Bytes(row)); err != nil {
					t.Fatal(err)
				}
			}
			both("a changed row", 8, 0)
			r := visit(9, 0)
			r.User.Id = "another"
			if after, err := ranked(t.Context(), cached, r); err != nil || after == before {
				t.Errorf("a changed row changes nothing: %q, %v", after, err)
			}
			if bytes := gathered(t, cached, "grebe_embed_device_bytes"); bytes < 3<<20 || bytes > 4<<20 {
				t.Errorf("rows have %v bytes, want 4 MiB in whole pages", bytes)
			}
			hits, misses := gathered(t, cached, "grebe_embed_device_hits_total"),
				gathered(t, cached, "grebe_embed_device_misses_total")
			if misses < 40 || misses > 60 || hits < 10*misses && name == "apart" || hits == 0 {
				t.Errorf("%v hits and %v misses of a table of 50 rows", hits, misses)
			}
			if sent := gathered(t, cached, "grebe_embed_device_fetched_bytes_total"); sent != misses*4*float64(len(row)) {
				t.Errorf("%v bytes were fetched for %v misses", sent, misses)
			}
		})
	}
}

// TestDeviceRowsRefused: a cache that leaves nothing to KV, and one on a device that has none, are errors.
func TestDeviceRowsRefused(t *testing.T) {
	path := "../testdata/fixtures/hstu/absolute"
	for want, c := range map[string]struct {
		rows string
		open Opener
	}{
		"give less": {"16MiB", openApart},
		"caches no rows": {"25%", func(cfg *config.Config, log *slog.Logger) ([]compute.Device, error) {
			d, err := openApart(cfg, log)
			return []compute.Device{struct{ compute.Device }{d[0]}}, err
		}},
	} {
		cfg := tableOfEvents(t, path, "4MiB", config.Setting{Path: "device", Value: "cpu"},
			config.Setting{Path: "models[0].device_memory", Value: "16MiB"},
			config.Setting{Path: "models[0].device_rows", Value: c.rows})
		a, err := Load(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler), Open: c.open})
		if err == nil {
			err = a.Close()
			t.Errorf("device_rows %s: no error, want %q", c.rows, want)
		}
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("device_rows %s: %v, want %q", c.rows, err, want)
		}
	}
}

// TestDeviceRowsOfAnotherCheckpoint: a checkpoint that shares the memory uses the cache if it has the same table, and
// items for which there is room.
func TestDeviceRowsOfAnotherCheckpoint(t *testing.T) {
	r := &deviceRows{table: "items", most: itemsFor(1000)}
	for want, c := range map[string]struct {
		table string
		items int
	}{"": {"items", 1250}, "item_table items": {"others", 10}, "the checkpoint has 5000": {"items", 5000}} {
		if got := r.lacks(c.table, c.items); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}
