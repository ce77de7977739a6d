package beam

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// Trees that cannot be walked safely are refused even where digest and checksum fit them, as an attacker's do.
func TestHostileTreesAreRefused(t *testing.T) {
	codes := []int32{0, 1, 0, 2, 1, 0, 1, 3, 2, 3} // five items, three nodes, then five leaves
	for _, c := range []struct {
		name   string
		damage func(ix *Index)
		places int
		want   string
	}{
		{"nothing", func(*Index) {}, 5, ""},
		{"more places", func(*Index) {}, 6, ""},
		{"fewer places", func(*Index) {}, 4, "position 4: item 4"},
		{"an item twice", func(ix *Index) { ix.items[3] = ix.items[1] }, 5, "twice"},
		{"an item out of range", func(ix *Index) { ix.items[2] = 5 }, 5, "out of range"},
		{"no levels", func(ix *Index) { ix.levels = nil }, 5, "no levels"},
		{"a level of no codes", func(ix *Index) { ix.levels[0].size = 0 }, 5, "level 0 has 0 codes"},
		{"too many codes", func(ix *Index) {
			l := &ix.levels[0]
			l.size, l.codes = 1<<31, Codes{long: []uint32{0, 1, 2}}
		}, 5, "level 0 has 2147483648 codes"},
		{"a code too high", func(ix *Index) { ix.levels[1].codes.short[4] = 4 }, 5, "level 1: code 4 of node 4"},
		{"a code twice", func(ix *Index) { ix.levels[1].codes.short[1] = 1 }, 5, "level 1: code 1 of node 1"},
		{"codes in no order", func(ix *Index) {
			slices.Reverse(ix.levels[1].codes.short[2:4])
		}, 5, "level 1: code 0 of node 3"},
		{"codes of the root in no order", func(ix *Index) { slices.Reverse(ix.levels[0].codes.short) }, 5, "level 0: code 1"},
		{"a node without children", func(ix *Index) { ix.levels[0].below.words[0] = 1 | 1<<2 }, 5, "level 0"},
		{"a node more", func(ix *Index) { ix.levels[0].below.words[0] |= 1 << 1 }, 5, "level 0"},
		{"children of no node", func(ix *Index) { ix.levels[0].below.words[0] = 1<<1 | 1<<2 | 1<<4 }, 5, "level 0"},
		{"children behind the last node", func(ix *Index) { ix.levels[0].below.words[0] = 1 | 1<<2 | 1<<5 }, 5, "level 0"},
		{"leaves without items", func(ix *Index) { ix.levels[1].below.words[0] = 1 }, 5, "level 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ix := catalog{sizes: []int{3, 4}, codes: codes}.build(t)
			for l := range ix.levels {
				ix.levels[l].below.words = slices.Clone(ix.levels[l].below.words)
			}
			c.damage(ix)
			_, err := Open(store(t, ix), c.places, nil)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (!errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want an error with %q", err, c.want)
			}
		})
	}
}

// A tree of the most places that numbers allow is refused before memory is taken for it.
func TestPlacesAreBounded(t *testing.T) {
	data := store(t, catalog{sizes: []int{3}, codes: []int32{1}}.build(t))
	if _, err := Open(data, math.MaxInt32+1, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("%v", err)
	}
	ix := catalog{sizes: []int{3}, codes: []int32{1}}.build(t)
	if err := ix.check(math.MaxInt32); err != nil {
		t.Errorf("as many places as there may be: %v", err)
	}
	for number, ok := range map[uint32]bool{math.MaxInt32: true, math.MaxInt32 + 1: false, 2: false, 3: true} {
		if err := checkNumbers([]uint32{number}, 1, 3); (err == nil) != ok {
			t.Errorf("number %d from 3 on: %v", number, err)
		}
	}
	if err := checkNumbers([]uint32{3, 4, 4}, 3, 3); err == nil {
		t.Error("a number twice: no error")
	}
	if _, err := Build([]int{math.MaxInt32}, []int32{math.MaxInt32 - 1}); err != nil {
		t.Errorf("a level of the most codes: %v", err)
	}
	if _, err := Build([]int{math.MaxInt32 + 1}, nil); err == nil {
		t.Error("a level of more codes than numbers: no error")
	}
}

type limited struct{ left int }

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		n := l.left
		l.left = 0
		return n, errors.New("full")
	}
	l.left -= len(p)
	return len(p), nil
}

// A write that fails anywhere is reported, with what was written.
func TestWriteFails(t *testing.T) {
	ix := randomCatalog(rng(2), 3, 50, 10, true).build(t)
	whole := len(store(t, ix))
	for room := range whole {
		n, err := ix.WriteTo(&limited{room})
		if err == nil || n > int64(room) {
			t.Fatalf("room for %d of %d bytes: wrote %d, %v", room, whole, n, err)
		}
	}
	if n, err := ix.WriteTo(&limited{whole}); err != nil || n != int64(whole) {
		t.Errorf("wrote %d of %d, %v", n, whole, err)
	}
}

// Paths sort right where their codes take just 64 bits together, and just more.
func TestPathsOfAbout64Bits(t *testing.T) {
	for _, sizes := range [][]int{
		{1<<31 - 1, 1<<31 - 1, 4}, {1<<31 - 1, 1<<31 - 1, 5}, {8, 1<<31 - 1, 1<<31 - 1}, {5, 1<<31 - 1, 1<<31 - 1, 2},
		{1 << 16, 1 << 16, 1 << 16, 1 << 16}, {1<<16 + 1, 1 << 16, 1 << 16, 1 << 16},
		{3, 1 << 16, 1 << 16, 1 << 16, 1 << 15, 2},
	} {
		r := rng(uint64(len(sizes)))
		c := catalog{sizes: sizes}
		for range 200 {
			for _, size := range sizes {
				c.codes = append(c.codes, []int32{0, int32(size - 1), int32(size / 2)}[r.IntN(3)])
			}
		}
		t.Run(fmt.Sprint(sizes), func(t *testing.T) { checkTree(t, c, c.build(t)) })
	}
}

// The largest code in use is found, in levels of two and of four bytes, and none where there is no item.
func TestLargest(t *testing.T) {
	for _, size := range []int{1 << 16, 1<<16 + 1} {
		ix := catalog{sizes: []int{9, size}, codes: []int32{3, 70, 5, 1, 0, 44}}.build(t)
		if a, b := ix.Largest(0), ix.Largest(1); a != 5 || b != 70 {
			t.Errorf("size %d: largest codes %d and %d, want 5 and 70", size, a, b)
		}
	}
	ix := catalog{sizes: []int{9}}.build(t)
	if got := ix.Largest(0); got != -1 {
		t.Errorf("largest code of nothing is %d, want -1", got)
	}
}

// Has reports what was added, and nothing else.
func TestSetHas(t *testing.T) {
	r := rng(4)
	ix := randomCatalog(r, 2, 5000, 60, false).build(t)
	set, in := randomSet(r, ix)
	for i := range uint32(ix.Len()) {
		if set.Has(i) != in[i] {
			t.Fatalf("item %d: %v, want %v", i, set.Has(i), in[i])
		}
	}
}

// The fast kernels are used where the machine has them.
func TestKernelsOfThisMachine(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("there are no others on ", runtime.GOARCH)
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Skip(err)
	}
	want := 1
	for line := range strings.Lines(string(info)) {
		if name, flags, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "flags" {
			if has := strings.Fields(flags); slices.Contains(has, "avx2") && slices.Contains(has, "fma") {
				want = 2
			}
			break
		}
	}
	if got := len(supported()); got != want {
		t.Errorf("%d kernels, want %d", got, want)
	}
}

// sliceBytes sums the memory of all slices that a value holds.
func sliceBytes(v reflect.Value) int {
	switch v.Kind() {
	case reflect.Slice:
		n := 0
		if k := v.Type().Elem().Kind(); k != reflect.Struct {
			return v.Len() * int(v.Type().Elem().Size())
		}
		for i := range v.Len() {
			n += sliceBytes(v.Index(i))
		}
		return n
	case reflect.Struct:
		n := 0
		for i := range v.NumField() {
			n += sliceBytes(v.Field(i))
		}
		return n
	}
	return 0
}

// Bytes counts every table of an index, so that budgets hold.
func TestBytesOfAnIndex(t *testing.T) {
	eachCatalog(t, func(t *testing.T, _ *rand.Rand, c catalog) {
		ix := c.build(t)
		if got, want := ix.Bytes(), sliceBytes(reflect.ValueOf(ix).Elem()); got != want {
			t.Errorf("%d bytes, want %d", got, want)
		}
	})
}

// The stored form of a small index, written down by hand: files outlive the program that wrote them.
func TestStoredForm(t *testing.T) {
	ix := catalog{sizes: []int{3, 70000}, codes: []int32{2, 69999, 0, 5, 0, 5}}.build(t)
	var tree []byte
	put := func(values ...any) {
		for _, v := range values {
			var err error
			if tree, err = binary.Append(tree, binary.LittleEndian, v); err != nil {
				t.Fatal(err)
			}
		}
		for len(tree)%8 != 0 {
			tree = append(tree, 0)
		}
	}
	put([]uint32{2, 3, 3, 2, 70000, 2}) // two levels, three items; sizes and nodes
	put([]uint16{0, 2})                 // the codes of level 0, of two bytes each
	put(uint64(0b11))                   // both have one child
	put([]uint32{5, 69999})             // the codes of level 1, of four
	put(uint64(0b101))                  // two items, then one
	digest := sha256.Sum256(tree)
	want := append([]byte("grebeIX1"), tree...)
	tree = append(want, digest[:]...)
	put([]uint32{1, 2, 0}) // the items
	put(uint64(crc32.Checksum(tree, crc32.MakeTable(crc32.Castagnoli))))
	if got := store(t, ix); !bytes.Equal(got, tree) {
		t.Errorf("stored as\n%x, want\n%x", got, tree)
	}
	if ix.Digest() != Digest(digest) {
		t.Errorf("digest %v, want %x", ix.Digest(), digest)
	}
}

// An index that is opened lies in the bytes it was opened from, where they are aligned: it takes no memory of its own.
func TestOpenedInPlace(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("this machine keeps numbers in another order")
	}
	data := store(t, catalog{sizes: []int{3, 70000}, codes: []int32{2, 69999, 0, 5, 0, 5}}.build(t))
	words := make([]uint64, (len(data)+7)/8) // aligned
	mapped := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(data))
	copy(mapped, data)
	ix, err := Open(mapped, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	within := func(p unsafe.Pointer) bool {
		at := uintptr(p) - uintptr(unsafe.Pointer(&words[0]))
		return at < uintptr(len(data))
	}
	if !within(unsafe.Pointer(&ix.items[0])) || !within(unsafe.Pointer(&ix.levels[0].codes.short[0])) ||
		!within(unsafe.Pointer(&ix.levels[1].codes.long[0])) || !within(unsafe.Pointer(&ix.levels[0].below.words[0])) {
		t.Error("the index copied what it was opened from")
	}
}
