package history

import (
	"encoding/binary"
	"hash/maphash"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"

	"grebe/prompt"
)

// Table is the items of a generation up to one version of it, each in a slot: a number that it keeps for
// as long as the generation lasts. An item that changes takes a new slot; one that goes leaves its slot
// behind. Slots are in the order in which their items were last changed. A Table never changes: later
// ones share its memory and add to it.
type Table struct {
	base, tail segment
	ids        *ids
	found      *postings
	ordered    *columns
}

// NewTable makes a table of items, in their order.
func NewTable(items []*prompt.Item) *Table {
	t := newTable(segment{})
	for i, it := range items {
		t.add(uint64(i+1), content(nil, it))
	}
	return t
}

func newTable(base segment) *Table {
	t := &Table{base: base, ids: newIDs(base.n), found: &postings{}, ordered: &columns{}}
	for slot, r := range base.records(0) {
		t.ids.put(r.id(), uint32(slot))
	}
	return t
}

// Slots returns the number of slots, in use or not.
func (t *Table) Slots() int { return t.base.n + t.tail.n }

// ID returns the id of the item in a slot.
func (t *Table) ID(slot uint32) string {
	defer runtime.KeepAlive(t)
	return strings.Clone(t.record(slot).id())
}

// Item returns the item in a slot. whole is false where the files are of format 1: text, tokens and
// identifier are then not known.
func (t *Table) Item(slot uint32) (it *prompt.Item, whole bool) {
	defer runtime.KeepAlive(t)
	return t.record(slot).item()
}

// Codes appends the codes of the item in a slot to dst.
func (t *Table) Codes(dst []int32, slot uint32) []int32 {
	defer runtime.KeepAlive(t)
	return t.record(slot).codes(dst)
}

// Values returns the values that the item in a slot has of an attribute.
func (t *Table) Values(slot uint32, name string) (out []string) {
	defer runtime.KeepAlive(t)
	t.record(slot).values(name, func(v string) bool {
		out = append(out, strings.Clone(v))
		return true
	})
	return out
}

// Paths visits the codes of the items in some slots, which ascend. The codes are valid until the next call.
func (t *Table) Paths(slots []uint32, visit func(slot uint32, codes []int32)) {
	defer runtime.KeepAlive(t)
	var codes []int32
	if len(slots) < t.Slots()/markEvery { // to look up each is faster than to go over all
		for _, slot := range slots {
			codes = t.record(slot).codes(codes[:0])
			visit(slot, codes)
		}
		return
	}
	for i, r := range t.all(0) {
		if len(slots) == 0 {
			return
		}
		if slot := uint32(i); slots[0] == slot {
			codes = r.codes(codes[:0])
			visit(slot, codes)
			slots = slots[1:]
		}
	}
}

// Find returns the slot of an id of which holds is true; there is one at most at any version.
func (t *Table) Find(id string, holds func(slot uint32) bool) (uint32, bool) {
	defer runtime.KeepAlive(t)
	return t.ids.find(id, func(slot uint32) bool {
		return int(slot) < t.Slots() && t.record(slot).id() == id && holds(slot)
	})
}

func (t *Table) record(slot uint32) record {
	if int(slot) < t.base.n {
		return t.base.record(int(slot))
	}
	return t.tail.record(int(slot) - t.base.n)
}

// all visits the slots from one on.
func (t *Table) all(from int) iter.Seq2[int, record] {
	return func(yield func(int, record) bool) {
		for i, r := range t.base.records(min(from, t.base.n)) {
			if !yield(i, r) {
				return
			}
		}
		for i, r := range t.tail.records(max(0, from-t.base.n)) {
			if !yield(t.base.n+i, r) {
				return
			}
		}
	}
}

// add puts an item into the next slot. Readers of earlier tables see nothing of it.
func (t *Table) add(version uint64, content []byte) uint32 {
	slot := uint32(t.Slots())
	t.tail.add(version, content)
	if t.ids.full(t.Slots()) {
		bigger := newIDs(2 * t.Slots())
		for i, r := range t.all(0) {
			bigger.put(r.id(), uint32(i))
		}
		t.ids = bigger
		return slot
	}
	t.ids.put(t.record(slot).id(), slot)
	return slot
}

// record is an item as a table holds it:
//
//	record  = uvarint(bytes that follow) uvarint(version) content
//	content = id, count of codes, codes, count of attributes, {name, count of values, values}…, rest
//	rest    = 1, text, count of tokens plus one or 0 for none, tokens, identifier
//
// Strings have their length before them, numbers are varints, names are sorted: a content has one form.
// Records of format 1 end before rest.
type record struct {
	version uint64
	content []byte
}

// rest1 begins the part of a content that format 1 does not have.
const rest1 = 1

// content appends the form of an item to dst.
func content(dst []byte, it *prompt.Item) []byte {
	dst = append(generated(dst, it), rest1)
	dst = appendString(dst, it.Text)
	if it.Tokens == nil {
		dst = binary.AppendUvarint(dst, 0)
	} else {
		dst = binary.AppendUvarint(dst, uint64(len(it.Tokens))+1)
		for _, t := range it.Tokens {
			dst = binary.AppendVarint(dst, int64(t))
		}
	}
	return binary.AppendVarint(dst, int64(it.Identifier))
}

// generated appends the part of a content that decides what is generated: all that format 1 has.
func generated(dst []byte, it *prompt.Item) []byte {
	dst = appendString(dst, it.ID)
	dst = binary.AppendUvarint(dst, uint64(len(it.Codes)))
	for _, c := range it.Codes {
		dst = binary.AppendVarint(dst, int64(c))
	}
	dst = binary.AppendUvarint(dst, uint64(len(it.Attributes)))
	if len(it.Attributes) == 0 {
		return dst
	}
	names := make([]string, 0, len(it.Attributes))
	for name := range it.Attributes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		dst = appendString(dst, name)
		dst = binary.AppendUvarint(dst, uint64(len(it.Attributes[name])))
		for _, v := range it.Attributes[name] {
			dst = appendString(dst, v)
		}
	}
	return dst
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// walker reads a content. What is damaged is found before, by checksums: it only takes care not to run on.
type walker []byte

func (w *walker) count() int {
	n, k := binary.Uvarint(*w)
	if k <= 0 {
		*w = nil
		return 0
	}
	*w = (*w)[k:]
	return int(min(n, 1<<31))
}

func (w *walker) number() int64 {
	n, k := binary.Varint(*w)
	if k <= 0 {
		*w = nil
		return 0
	}
	*w = (*w)[k:]
	return n
}

// str returns a string that shares the content's memory.
func (w *walker) str() string {
	n := min(w.count(), len(*w))
	s := (*w)[:n]
	*w = (*w)[n:]
	return unsafe.String(unsafe.SliceData(s), len(s))
}

func (r record) id() string {
	w := walker(r.content)
	return w.str()
}

// bare reports whether the item has no codes.
func (r record) bare() bool {
	w := walker(r.content)
	w.str()
	return w.count() == 0
}

func (r record) codes(dst []int32) []int32 {
	w := walker(r.content)
	w.str()
	for n := w.count(); n > 0 && len(w) > 0; n-- {
		dst = append(dst, int32(w.number()))
	}
	return dst
}

// item decodes the whole item. whole is false of a record of format 1, which has neither text nor tokens
// nor identifier.
func (r record) item() (it *prompt.Item, whole bool) {
	w := walker(r.content)
	it = &prompt.Item{ID: strings.Clone(w.str()), Identifier: -1}
	for n := w.count(); n > 0 && len(w) > 0; n-- {
		it.Codes = append(it.Codes, int32(w.number()))
	}
	for n := w.count(); n > 0 && len(w) > 0; n-- {
		if it.Attributes == nil {
			it.Attributes = map[string][]string{}
		}
		name := strings.Clone(w.str())
		values := []string{}
		for m := w.count(); m > 0 && len(w) > 0; m-- {
			values = append(values, strings.Clone(w.str()))
		}
		it.Attributes[name] = values
	}
	if len(w) == 0 || w[0] != rest1 {
		return it, false
	}
	w = w[1:]
	it.Text = strings.Clone(w.str())
	if n := w.count(); n > 0 {
		it.Tokens = []int32{}
		for ; n > 1 && len(w) > 0; n-- {
			it.Tokens = append(it.Tokens, int32(w.number()))
		}
	}
	it.Identifier = int32(w.number())
	return it, true
}

// names visits the names of the attributes until visit returns false. They share the record's memory.
func (r record) names(visit func(string) bool) {
	w := walker(r.content)
	w.str()
	for n := w.count(); n > 0 && len(w) > 0; n-- {
		w.number()
	}
	for n := w.count(); n > 0 && len(w) > 0; n-- {
		if !visit(w.str()) {
			return
		}
		for m := w.count(); m > 0 && len(w) > 0; m-- {
			w.str()
		}
	}
}

// values visits the values of an attribute until visit returns false.
func (r record) values(name string, visit func(string) bool) {
	w := walker(r.content)
	w.str()
	for n := w.count(); n > 0 && len(w) > 0; n-- {
		w.number()
	}
	for n := w.count(); n > 0 && len(w) > 0; n-- {
		wanted := w.str() == name
		for m := w.count(); m > 0 && len(w) > 0; m-- {
			if v := w.str(); wanted && !visit(v) {
				return
			}
		}
		if wanted {
			return
		}
	}
}

// segment is records one after the other, of which every sixteenth can be found at once.
type segment struct {
	blob  []byte
	marks []uint64
	n     int
	plain bool     // read from a file of format 1
	owner *mapping // of their memory, which must stay reachable; nil: the heap's
}

const markEvery = 16

func (s *segment) add(version uint64, content []byte) {
	if s.n%markEvery == 0 {
		s.marks = append(s.marks, uint64(len(s.blob)))
	}
	s.blob = appendRecord(s.blob, version, content)
	s.n++
}

func appendRecord(dst []byte, version uint64, content []byte) []byte {
	var v [binary.MaxVarintLen64]byte
	k := binary.PutUvarint(v[:], version)
	dst = binary.AppendUvarint(dst, uint64(k+len(content)))
	return append(append(dst, v[:k]...), content...)
}

func (s *segment) record(i int) record {
	at := s.blob[s.marks[i/markEvery]:]
	for range i % markEvery {
		_, at = next(at)
	}
	r, _ := next(at)
	return r
}

// records visits the records from one on.
func (s *segment) records(from int) iter.Seq2[int, record] {
	return func(yield func(int, record) bool) {
		if from >= s.n {
			return
		}
		at := s.blob[s.marks[from/markEvery]:]
		for i := from / markEvery * markEvery; i < s.n; i++ {
			var r record
			if r, at = next(at); i >= from && !yield(i, r) {
				return
			}
		}
	}
}

// next takes a record off. The bytes of a segment are checked when they are read from a file.
func next(b []byte) (record, []byte) {
	n, k := binary.Uvarint(b)
	body := b[k : k+int(n)]
	version, v := binary.Uvarint(body)
	return record{version, body[v:]}, b[k+int(n):]
}

// ids finds slots by id: a hash table of slots plus one, without deletion. One writer adds while others read.
type ids struct {
	seed  maphash.Seed
	slots []atomic.Uint32
}

func newIDs(n int) *ids {
	size := 64
	for size < 2*n {
		size *= 2
	}
	return &ids{maphash.MakeSeed(), make([]atomic.Uint32, size)}
}

func (x *ids) full(n int) bool { return n > len(x.slots)*3/4 }

func (x *ids) put(id string, slot uint32) {
	for i := maphash.String(x.seed, id); ; i++ {
		if e := &x.slots[i%uint64(len(x.slots))]; e.Load() == 0 {
			e.Store(slot + 1)
			return
		}
	}
}

func (x *ids) find(id string, is func(slot uint32) bool) (uint32, bool) {
	for i := maphash.String(x.seed, id); ; i++ {
		e := x.slots[i%uint64(len(x.slots))].Load()
		if e == 0 {
			return 0, false
		}
		if is(e - 1) {
			return e - 1, true
		}
	}
}
