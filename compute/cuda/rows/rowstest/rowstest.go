// Package rowstest has the kernels of package rows in plain Go, for a simulated GPU.
package rowstest

import (
	"encoding/binary"
	"math"
	"unsafe"

	"grebe/compute/cuda/drivertest"
	"grebe/internal/offheap"
)

// Simulate registers the kernels.
func Simulate(g *drivertest.GPU) {
	k := kernels{g}
	for name, f := range map[string]func(*drivertest.Launch){
		"rows_gather": k.gather, "rows_pool": k.pool, "rows_find": k.find, "rows_fetch": k.fetch,
		"rows_clear": k.clear, "rows_place": k.place, "rows_pages": k.pages, "rows_sweep": k.sweep,
	} {
		g.Kernels[name] = f
	}
}

type kernels struct{ g *drivertest.GPU }

type page struct {
	base  uint64
	epoch uint32
	_     uint32
}

type table struct {
	entries, pages            uint64
	rows                      uint32
	words, slotBits, pageBits int32
}

type job struct {
	ids, out, starts, weights  uint64
	table, count, stride, mean int32
}

type stage struct {
	ids, count, base uint64
	first, room      uint32
}

type change struct {
	id, entry uint32
	staged    int32
	evicted   uint32
}

// at returns n values at an address.
func at[T any](g *drivertest.GPU, addr uint64, n int) []T {
	var v T
	if n == 0 {
		return nil
	}
	return offheap.Slice[T](g.Bytes(addr, n*int(unsafe.Sizeof(v))), n)
}

func one[T any](g *drivertest.GPU, addr uint64, i int) *T {
	var v T
	return &at[T](g, addr+uint64(i)*uint64(unsafe.Sizeof(v)), 1)[0]
}

func (k kernels) table(l *drivertest.Launch, i int) *table { return one[table](k.g, l.Args[0], i) }

func number(l *drivertest.Launch, i int) int { return int(int32(l.Args[i])) }

func (t *table) bytes() int { return int(t.words) * 16 }

// entry splits an entry.
func (t *table) entry(e uint32) (epoch uint32, page, slot int) {
	at := int(e & (1<<t.slotBits - 1))
	return e >> t.slotBits, at >> t.pageBits, at & (1<<t.pageBits - 1)
}

// row returns a row's bytes; nil: it is not cached.
func (k kernels) row(t *table, id uint32) []byte {
	if id >= t.rows {
		return nil
	}
	epoch, p, slot := t.entry(*one[uint32](k.g, t.entries, int(id)))
	of := one[page](k.g, t.pages, p)
	if epoch == 0 || of.epoch != epoch {
		return nil
	}
	return k.g.Bytes(of.base+uint64(slot*t.bytes()), t.bytes())
}

func (k kernels) jobs(l *drivertest.Launch) []job { return at[job](k.g, l.Args[1], l.Grid[1]) }

// open returns the values of a row.
func open(l *drivertest.Launch, row []byte) []float32 {
	var out []float32
	if l.Defines["IN"] == "1" {
		for i := 0; i < len(row); i += 2 {
			out = append(out, math.Float32frombits(uint32(binary.LittleEndian.Uint16(row[i:]))<<16))
		}
		return out
	}
	for i := 0; i < len(row); i += 4 {
		out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(row[i:])))
	}
	return out
}

// store writes values in the output's format.
func (k kernels) store(l *drivertest.Launch, addr uint64, values []float32) {
	if l.Defines["OUT"] == "0" {
		copy(at[float32](k.g, addr, len(values)), values)
		return
	}
	to := at[uint16](k.g, addr, len(values))
	for i, v := range values {
		b := math.Float32bits(v)
		to[i] = uint16((b + 0x7fff + b>>16&1) >> 16)
	}
}

func (k kernels) gather(l *drivertest.Launch) {
	for _, j := range k.jobs(l) {
		t := k.table(l, int(j.table))
		for i, id := range at[uint32](k.g, j.ids, int(j.count)) {
			row := k.row(t, id)
			if row == nil {
				row = make([]byte, t.bytes())
			}
			k.store(l, j.out+uint64(i)*uint64(j.stride), open(l, row))
		}
	}
}

func (k kernels) pool(l *drivertest.Launch) {
	for _, j := range k.jobs(l) {
		t, starts := k.table(l, int(j.table)), at[int32](k.g, j.starts, int(j.count)+1)
		for bag := range int(j.count) {
			begin, end := int(starts[bag]), int(starts[bag+1])
			sum := open(l, make([]byte, t.bytes()))
			for i := begin; i < end; i++ {
				row := k.row(t, *one[uint32](k.g, j.ids, i))
				weight := float32(1)
				if j.weights != 0 {
					weight = *one[float32](k.g, j.weights, i)
				}
				for c, v := range open(l, row) {
					sum[c] += weight * v
				}
			}
			for c := range sum {
				if j.mean != 0 && end > begin {
					sum[c] /= float32(end - begin)
				}
			}
			k.store(l, j.out+uint64(bag)*uint64(j.stride), sum)
		}
	}
}

func (k kernels) find(l *drivertest.Launch) {
	for _, j := range k.jobs(l) {
		t, s := k.table(l, int(j.table)), one[stage](k.g, l.Args[2], int(j.table))
		n := int(j.count)
		if j.starts != 0 {
			n = int(*one[int32](k.g, j.starts, n))
		}
		count := one[uint32](k.g, s.count, 0)
		for _, id := range at[uint32](k.g, j.ids, n) {
			if id >= t.rows || k.row(t, id) != nil {
				continue
			}
			e := one[uint32](k.g, t.entries, int(id))
			if *e = 0; *count < s.room {
				*e = s.first + *count
				*one[uint32](k.g, s.ids, int(*count)) = id
			}
			*count++
		}
	}
}

func (k kernels) fetch(l *drivertest.Launch) {
	t, s := k.table(l, number(l, 2)), one[stage](k.g, l.Args[1], number(l, 2))
	n := number(l, 6)
	if n < 0 {
		n = int(*one[uint32](k.g, s.count, 0))
	}
	for i, id := range at[uint32](k.g, s.ids, min(n, int(s.room))) {
		if number(l, 6) >= 0 && id < t.rows {
			*one[uint32](k.g, t.entries, int(id)) = s.first + uint32(i)
		}
		from := i
		if number(l, 5) != 0 {
			from = int(id)
		}
		row := k.g.Bytes(l.Args[3]+uint64(from*number(l, 4)), t.bytes())
		copy(k.g.Bytes(s.base+uint64(i*t.bytes()), t.bytes()), row)
	}
}

func (k kernels) clear(l *drivertest.Launch) {
	t := k.table(l, number(l, 1))
	for _, c := range at[change](k.g, l.Args[2], number(l, 3)) {
		if c.evicted < t.rows {
			*one[uint32](k.g, t.entries, int(c.evicted)) = 0
		}
	}
}

func (k kernels) place(l *drivertest.Launch) {
	t := k.table(l, number(l, 1))
	for _, c := range at[change](k.g, l.Args[2], number(l, 3)) {
		*one[uint32](k.g, t.entries, int(c.id)) = c.entry
		copy(k.row(t, c.id), k.g.Bytes(l.Args[4]+uint64(int(c.staged)*t.bytes()), t.bytes()))
	}
}

func (k kernels) pages(l *drivertest.Launch) {
	t := k.table(l, number(l, 1))
	for i := range number(l, 3) {
		base := l.Args[4] + uint64(i<<t.pageBits*t.bytes())
		*one[page](k.g, t.pages, number(l, 2)+i) = page{base: base, epoch: uint32(l.Args[5])}
	}
}

func (k kernels) sweep(l *drivertest.Launch) {
	t := k.table(l, number(l, 1))
	for i, e := range at[uint32](k.g, t.entries, int(t.rows)) {
		if _, p, _ := t.entry(e); p >= number(l, 2) && p < number(l, 2)+number(l, 3) {
			*one[uint32](k.g, t.entries, i) = 0
		}
	}
}
