package evict

import "math"

// Directory decides which rows of a table have slots in a cache that its owner cannot look into, as in the memory of a
// GPU. It knows the row of each slot and the slot of each row; the owner holds the rows and carries out the decisions.
// Victims are those of [SlabSet], in sets of SlabSlots slots. It is not safe for concurrent use.
//
// Pages of slots come and go at the end. A row stays in its slot when others are added, because its slot is known and
// not computed.
type Directory struct {
	slab     Slab
	mode     Mode
	now      uint64
	homes    Homes
	pageRows int
	open     int      // slots in use: whole pages
	slots    []uint32 // by row; it holds if the slot is open and has the row
	rows     []uint32 // by slot
	stamps   []Stamp  // by slot
	filled   []uint8  // slots of a set that have rows; freshSet: it is to be cleared before it is used
	sets     []SlabSet
}

// NoRow is no row's number.
const NoRow = math.MaxUint32

// NewDirectory makes a directory of a table of that many rows, without pages. pageRows is a multiple of SlabSlots.
func NewDirectory(rows, pages, pageRows int, mode Mode) *Directory {
	n := pages * pageRows
	return &Directory{slab: NewSlab(n), mode: mode, now: 1, homes: Homes(n / SlabSlots), pageRows: pageRows,
		slots: make([]uint32, rows), rows: make([]uint32, n), stamps: make([]Stamp, n),
		filled: make([]uint8, n/SlabSlots), sets: make([]SlabSet, n/SlabSlots)}
}

// Pages returns how many pages are open, and how many may be.
func (d *Directory) Pages() (open, most int) { return d.open / d.pageRows, len(d.rows) / d.pageRows }

// Open adds an empty page and returns its number; false when all are open. Its sets are cleared when they are first
// used, so that many pages open in little time.
func (d *Directory) Open() (page int, ok bool) {
	if d.open == len(d.rows) {
		return 0, false
	}
	for set := d.open / SlabSlots; set < (d.open+d.pageRows)/SlabSlots; set++ {
		d.filled[set] = freshSet
	}
	d.open += d.pageRows
	return d.open/d.pageRows - 1, true
}

// Shut takes the last page away and returns its number; false when there is none. Its rows are forgotten. It touches
// none of them.
func (d *Directory) Shut() (page int, ok bool) {
	if d.open == 0 {
		return 0, false
	}
	d.open -= d.pageRows
	return d.open / d.pageRows, true
}

// Slot returns the slot of a row.
func (d *Directory) Slot(row uint32) (slot int, ok bool) {
	slot = int(d.slots[row])
	return slot, slot < d.open && d.rows[slot] == row && d.filled[slot/SlabSlots] != freshSet
}

// freshSet marks a set whose slots and victims are those of an earlier page.
const freshSet = 255

func (d *Directory) clear(home int) {
	for slot := home * SlabSlots; slot < (home+1)*SlabSlots; slot++ {
		d.rows[slot] = NoRow
	}
	d.sets[home], d.filled[home] = SlabSet{}, 0
}

// Use records a use of a row and reports whether it is cached.
func (d *Directory) Use(row uint32) bool {
	slot, ok := d.Slot(row)
	if ok {
		d.UseSlot(slot)
	} else {
		d.now++
	}
	return ok
}

// UseSlot is Use of a row whose slot is known: from Slot, with no change since.
func (d *Directory) UseSlot(slot int) {
	d.now++
	d.stamps[slot] = d.slab.Use(d.stamps[slot], d.now)
}

// Place decides about a row that was missed. It returns the slot that it gets, and the row that leaves it or NoRow;
// false if it gets none.
func (d *Directory) Place(row uint32) (slot int, evicted uint32, ok bool) {
	if d.open == 0 {
		return 0, NoRow, false
	}
	h := scatter(row)
	home := d.homes.Home(h, d.open/SlabSlots)
	if d.filled[home] == freshSet {
		d.clear(home)
	}
	set := directorySet{d, home * SlabSlots}
	at, m, ok := d.sets[home].Place(d.slab, h, d.now, d.mode, set)
	if !ok {
		return 0, NoRow, false
	}
	slot = set.first + at
	if evicted = d.rows[slot]; evicted == NoRow {
		d.filled[home]++
	}
	d.rows[slot], d.stamps[slot], d.slots[row] = row, m, uint32(slot)
	return slot, evicted, true
}

// Remove forgets a row, whose content has changed. It reports whether the row had a slot.
func (d *Directory) Remove(row uint32) bool {
	slot, ok := d.Slot(row)
	if ok {
		d.rows[slot] = NoRow
		d.filled[slot/SlabSlots]--
	}
	return ok
}

// scatter returns the key of a row: the finaliser of SplitMix64, never 0.
func scatter(row uint32) uint64 {
	key := uint64(row) + 1
	key = (key ^ key>>30) * 0xBF58476D1CE4E5B9
	key = (key ^ key>>27) * 0x94D049BB133111EB
	return key ^ key>>31
}

// directorySet is a set of a directory as [Rows].
type directorySet struct {
	d     *Directory
	first int // slot
}

func (s directorySet) Stamp(slot int) Stamp { return s.d.stamps[s.first+slot] }
func (s directorySet) Stamps() [SlabSlots]Stamp {
	return [SlabSlots]Stamp(s.d.stamps[s.first : s.first+SlabSlots])
}
func (s directorySet) Key(slot int) uint64 { return scatter(s.d.rows[s.first+slot]) }
func (s directorySet) Empty() int {
	if s.d.filled[s.first/SlabSlots] == SlabSlots {
		return -1
	}
	for i, row := range s.d.rows[s.first : s.first+SlabSlots] {
		if row == NoRow {
			return i
		}
	}
	return -1
}
