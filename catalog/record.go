package catalog

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"unsafe"

	grebev1 "grebe/api/grebe/v1"
	"grebe/prompt"
)

// A record is the content of an item, of a user or of appended events, in one form per content: its
// strings, then its numbers, so that what is kept in memory of the strings is one allocation.
//
//	record  = uvarint(length of strings) strings numbers
//	item    strings: id text {name values…}…     numbers: flags tokens identifier codes {count of values}…
//	user    strings: id text history events      numbers: flags tokens history events
//	events  strings: {item {feature}…}… {id}…    numbers: count {time action count {feature}…}… 1, if an event has an id
//
// A string is its length and its bytes. FORMAT.md has the rest of what is on disk.
type record []byte

// digest identifies content. As a sum it identifies a set of contents, whatever their order.
type digest [2]uint64

func (d digest) String() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], d[0])
	binary.BigEndian.PutUint64(b[8:], d[1])
	return hex.EncodeToString(b[:])
}

func (d digest) plus(e digest) digest  { return digest{d[0] + e[0], d[1] + e[1]} }
func (d digest) minus(e digest) digest { return digest{d[0] - e[0], d[1] - e[1]} }

func (r record) digest() digest {
	h := sha256.Sum256(r)
	return digest{binary.LittleEndian.Uint64(h[:8]), binary.LittleEndian.Uint64(h[8:16])}
}

// Flags of records: which optional parts are there. An empty list is not the same as none.
const (
	hasText = 1 << iota
	hasTokens
	hasIdentifier
	hasCodes
	hasHistory
	hasEvents
)

// recorder builds a record.
type recorder struct{ strings, numbers []byte }

func (r *recorder) str(s string) {
	r.strings = append(binary.AppendUvarint(r.strings, uint64(len(s))), s...)
}
func (r *recorder) count(n int) { r.numbers = binary.AppendUvarint(r.numbers, uint64(n)) }
func (r *recorder) int(n int64) { r.numbers = binary.AppendVarint(r.numbers, n) }

func (r *recorder) ints(ns []int32) {
	r.count(len(ns))
	for _, n := range ns {
		r.int(int64(n))
	}
}

func (r *recorder) record() record {
	out := make([]byte, 0, len(r.strings)+len(r.numbers)+binary.MaxVarintLen32)
	out = binary.AppendUvarint(out, uint64(len(r.strings)))
	return append(append(out, r.strings...), r.numbers...)
}

func itemRecord(m *grebev1.Item) record {
	r := &recorder{strings: make([]byte, 0, 64+len(m.Id)+len(m.GetText()))}
	r.str(m.Id)
	r.str(m.GetText())
	flags := 0
	if m.Tokens != nil {
		flags |= hasTokens
	}
	if m.Identifier != nil {
		flags |= hasIdentifier
	}
	if m.Codes != nil {
		flags |= hasCodes
	}
	r.count(flags)
	if m.Tokens != nil {
		r.ints(m.Tokens)
	}
	if m.Identifier != nil {
		r.int(int64(*m.Identifier))
	}
	if m.Codes != nil {
		r.ints(m.Codes)
	}
	r.count(len(m.Attributes))
	for _, name := range sortedKeys(m.Attributes) {
		values := m.Attributes[name].GetValues()
		r.str(name)
		r.count(len(values))
		for _, v := range values {
			r.str(v)
		}
	}
	return r.record()
}

func userRecord(m *grebev1.User) record {
	r := &recorder{}
	r.str(m.Id)
	r.str(m.GetText())
	flags := 0
	if m.Text != nil {
		flags |= hasText
	}
	if m.Tokens != nil {
		flags |= hasTokens
	}
	if m.History != nil {
		flags |= hasHistory
	}
	if m.Events != nil {
		flags |= hasEvents
	}
	r.count(flags)
	if m.Tokens != nil {
		r.ints(m.Tokens)
	}
	if m.History != nil {
		r.count(len(m.History))
		for _, id := range m.History {
			r.str(id)
		}
	}
	if m.Events != nil {
		r.events(m.Events)
	}
	return r.record()
}

func eventsRecord(events []*grebev1.Event) record {
	r := &recorder{}
	r.events(events)
	return r.record()
}

func (r *recorder) events(events []*grebev1.Event) {
	r.count(len(events))
	for _, e := range events {
		r.str(e.GetItem())
		r.int(e.GetTime())
		r.int(int64(e.GetAction()))
		r.count(len(e.GetFeatures()))
		for _, name := range sortedKeys(e.GetFeatures()) {
			r.str(name)
			r.numbers = binary.LittleEndian.AppendUint64(r.numbers, math.Float64bits(e.Features[name]))
		}
	}
	if !slices.ContainsFunc(events, func(e *grebev1.Event) bool { return e.GetId() != "" }) {
		return
	}
	r.count(1)
	for _, e := range events {
		r.str(e.GetId())
	}
}

func sortedKeys[V any](m map[string]V) []string {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

var errRecord = errors.New("malformed record")

// player reads a record. The first mistake ends the reading: the methods then return zeros.
type player struct {
	strings string
	numbers []byte
	bad     bool
}

func play(r record) *player {
	n, k := binary.Uvarint(r)
	if k <= 0 || n > uint64(len(r)-k) {
		return &player{bad: true}
	}
	rest := r[k:]
	return &player{strings: string(rest[:n]), numbers: rest[n:]}
}

// done reports a mistake, or what was left over.
func (p *player) done() error {
	if p.bad || len(p.strings) > 0 || len(p.numbers) > 0 {
		return errRecord
	}
	return nil
}

func (p *player) str() string {
	// A length is a uvarint: read byte by byte, since the strings are one string.
	n, shift := uint64(0), 0
	for i := 0; i < len(p.strings) && shift < 63; i++ {
		b := p.strings[i]
		n |= uint64(b&0x7f) << shift
		shift += 7
		if b >= 0x80 {
			continue
		}
		if n > uint64(len(p.strings)-i-1) {
			break
		}
		s := p.strings[i+1 : i+1+int(n)]
		p.strings = p.strings[i+1+int(n):]
		return s
	}
	p.fail()
	return ""
}

func (p *player) fail() { p.bad, p.strings, p.numbers = true, "", nil }

// count reads a count, which is at most most: each thing counted takes a byte or more.
func (p *player) count(most int) int {
	n, k := binary.Uvarint(p.numbers)
	if k <= 0 || n > uint64(most) {
		p.fail()
		return 0
	}
	p.numbers = p.numbers[k:]
	return int(n)
}

func (p *player) int() int64 {
	n, k := binary.Varint(p.numbers)
	if k <= 0 {
		p.fail()
		return 0
	}
	p.numbers = p.numbers[k:]
	return n
}

// ints reads numbers into the memory of dst, if it is large enough.
func (p *player) ints(dst []int32) []int32 {
	n := p.count(len(p.numbers))
	if dst == nil || n > cap(dst) {
		dst = make([]int32, n)
	}
	dst = dst[:n]
	for i := range dst {
		dst[i] = int32(p.int())
	}
	return dst
}

func (p *player) float() float64 {
	if len(p.numbers) < 8 {
		p.fail()
		return 0
	}
	f := math.Float64frombits(binary.LittleEndian.Uint64(p.numbers))
	p.numbers = p.numbers[8:]
	return f
}

// id returns the first string of a record: the id of an item. The record is well formed.
func (r record) id() []byte {
	_, k := binary.Uvarint(r)
	n, j := binary.Uvarint(r[k:])
	return r[k+j : k+j+int(n)]
}

// What an entry takes in memory beyond what it points to: its place in a map, with the room that a
// map leaves, and what allocation rounds up.
const (
	slot       = 44
	mapSize    = 400 // of a map of strings with a few entries
	userStruct = int64(unsafe.Sizeof(userEntry{})+unsafe.Sizeof(grebev1.User{})) + slot + 32
	eventSize  = int64(unsafe.Sizeof(grebev1.Event{})) + 8
	itemRoom   = 32 // of an item beyond its record: version, length, slots of the table, room in blocks
)

// newItem decodes the record of an item.
func newItem(r record) (*prompt.Item, error) {
	var s scratch
	if err := s.decode(play(r)); err != nil {
		return nil, err
	}
	it := s.item
	return &it, nil
}

// scratch decodes items one after the other into the same memory. The zero value is ready.
type scratch struct {
	item          prompt.Item
	tokens, codes []int32
	values        []string
	attributes    map[string][]string
}

// read decodes a record. The item shares the record's memory, and is valid until the next call.
func (s *scratch) read(r record) error {
	p := player{bad: true}
	if n, k := binary.Uvarint(r); k > 0 && n <= uint64(len(r)-k) {
		strings := r[k : k+int(n)]
		p = player{strings: unsafe.String(unsafe.SliceData(strings), len(strings)), numbers: r[k+int(n):]}
	}
	s.forget()
	return s.decode(&p)
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// forget lets go of the memory of the record that was read.
func (s *scratch) forget() {
	s.item = prompt.Item{}
	clear(s.attributes)
	clear(s.values)
	s.values = s.values[:0]
}

func (s *scratch) decode(p *player) error {
	it := &s.item
	*it = prompt.Item{ID: p.str(), Text: p.str(), Identifier: -1}
	flags := p.count(math.MaxInt32)
	if flags&hasTokens != 0 {
		s.tokens = p.ints(s.tokens)
		it.Tokens = s.tokens
	}
	if flags&hasIdentifier != 0 {
		it.Identifier = int32(p.int())
	}
	if flags&hasCodes != 0 {
		s.codes = p.ints(s.codes)
		it.Codes = s.codes
	}
	if n := p.count(len(p.strings)); n > 0 {
		if s.attributes == nil {
			s.attributes = make(map[string][]string, n)
		}
		it.Attributes = s.attributes
		for range n {
			name, count := p.str(), p.count(len(p.strings))
			if s.values == nil {
				s.values = make([]string, 0, max(n, count))
			}
			s.values = slices.Grow(s.values, count)
			from := len(s.values)
			for range count {
				s.values = append(s.values, p.str())
			}
			it.Attributes[name] = s.values[from:len(s.values):len(s.values)]
		}
	}
	if err := p.done(); err != nil {
		return fmt.Errorf("item: %w", err)
	}
	return nil
}

// firstValues calls f with each attribute of an item's record that has a value, and its first value. Both share the
// record's memory. The record is well formed.
func (r record) firstValues(f func(name, first string)) {
	n, k := binary.Uvarint(r)
	strings := r[k : k+int(n)]
	p := player{strings: unsafe.String(unsafe.SliceData(strings), len(strings)), numbers: r[k+int(n):]}
	p.str() // id
	p.str() // text
	flags := p.count(math.MaxInt32)
	if flags&hasTokens != 0 {
		p.skip(p.count(len(p.numbers)))
	}
	if flags&hasIdentifier != 0 {
		p.skip(1)
	}
	if flags&hasCodes != 0 {
		p.skip(p.count(len(p.numbers)))
	}
	for range p.count(len(p.strings)) {
		name := p.str()
		for i := range p.count(len(p.strings)) {
			if value := p.str(); i == 0 {
				f(name, value)
			}
		}
	}
}

// skip passes n numbers.
func (p *player) skip(n int) {
	at := 0
	for ; n > 0 && at < len(p.numbers); at++ {
		if p.numbers[at] < 0x80 {
			n--
		}
	}
	p.numbers = p.numbers[at:]
}

// newUser returns an entry without a version.
func newUser(r record) (*userEntry, error) {
	p := play(r)
	m := &grebev1.User{}
	e := &userEntry{user: m, digest: r.digest(), size: userStruct + int64(len(p.strings))}
	m.Id = p.str()
	text := p.str()
	flags := p.count(math.MaxInt32)
	if flags&hasText != 0 {
		m.Text = &text
	}
	if flags&hasTokens != 0 {
		m.Tokens = p.ints(nil)
	}
	if flags&hasHistory != 0 {
		m.History = make([]string, p.count(len(p.strings)))
		for i := range m.History {
			m.History[i] = p.str()
		}
	}
	if flags&hasEvents != 0 {
		m.Events = p.events()
	}
	e.size += 4*int64(len(m.Tokens)) + 16*int64(len(m.History)) + sizeOfEvents(m.Events)
	if err := p.done(); err != nil {
		return nil, fmt.Errorf("user: %w", err)
	}
	return e, nil
}

// newEvents returns the events of a record; they take size bytes in memory.
func newEvents(r record) (events []*grebev1.Event, size int64, err error) {
	p := play(r)
	size = int64(len(p.strings))
	events = p.events()
	if err := p.done(); err != nil {
		return nil, 0, fmt.Errorf("events: %w", err)
	}
	return events, size + sizeOfEvents(events), nil
}

func (p *player) events() []*grebev1.Event {
	out := make([]*grebev1.Event, p.count(len(p.numbers)))
	all := make([]grebev1.Event, len(out))
	for i := range out {
		e := &all[i]
		e.Item, e.Time, e.Action = p.str(), p.int(), int32(p.int())
		if n := p.count(len(p.numbers)); n > 0 {
			e.Features = make(map[string]float64, n)
			for range n {
				e.Features[p.str()] = p.float()
			}
		}
		out[i] = e
	}
	if len(p.numbers) > 0 && p.count(1) == 1 { // events end their record
		for _, e := range out {
			e.Id = p.str()
		}
	}
	return out
}

func sizeOfEvents(events []*grebev1.Event) int64 {
	n := int64(len(events)) * eventSize
	for _, e := range events {
		if len(e.Features) > 0 {
			n += mapSize + int64(max(0, len(e.Features)-8))*32
		}
	}
	return n
}
