package placement

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// maps returns one map of each kind.
func maps(t testing.TB) map[string]*Map {
	c := config(t, 1, 5, 300)
	c.Members[4].Weight = 0
	c.Hot, c.Parts = 0.01, 40
	full, err := Replicate(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	hot, err := HotCold(c.Config, c.Uses, 0.3)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*Map{"hash": hash(t, c.Config), "full": full, "hot": hot, "similar": similar(t, c),
		"one": hash(t, Config{Members: Members(1)})}
}

func TestEncode(t *testing.T) {
	for name, m := range maps(t) {
		data := m.Encode()
		got, err := Decode(data)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%s: read back another map, error %v", name, err)
		}
		for n := range data {
			if _, err := Decode(data[:n]); err == nil {
				t.Fatalf("%s: accepted %d of %d bytes", name, n, len(data))
			}
			bad := bytes.Clone(data)
			bad[n] ^= 1 << (n % 8)
			if _, err := Decode(bad); err == nil {
				t.Fatalf("%s: accepted a flipped bit in byte %d", name, n)
			}
		}
		if _, err := Decode(sealed(append(data[:len(data)-4:len(data)-4], 0))); err == nil ||
			!strings.Contains(err.Error(), "after the end") {
			t.Errorf("%s: a byte more: %v", name, err)
		}
	}
}

// sealed adds the checksum.
func sealed(body []byte) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(body), crc32.Checksum(body, castagnoli))
}

// FuzzDecode gives bytes a right checksum: whatever is read then is a map that can be used and writes the same bytes.
func FuzzDecode(f *testing.F) {
	for _, m := range maps(f) {
		data := m.Encode()
		f.Add(data[:len(data)-4])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := Decode(sealed(body))
		if err != nil {
			return
		}
		if !bytes.Equal(m.Encode(), sealed(body)) {
			t.Fatal("the map writes other bytes")
		}
		for _, i := range []int32{0, 1, int32(m.Items() - 1), int32(m.Items()), -1} {
			if owner, second, _ := m.Place(i); !m.live(owner) || !m.live(second) {
				t.Fatalf("item %d at %d and %d", i, owner, second)
			}
		}
		if m.Nodes() > 8 || m.Parts() > 1000 {
			return
		}
		more := append(slices.Clone(m.Members()), Member{"another member", 1})
		if _, err := m.Change(more); err != nil && !strings.Contains(err.Error(), "two members") {
			t.Fatal(err)
		}
	})
}
