package cluster

import (
	"bytes"
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/cluster/coord"
	"grebe/cluster/member"
	"grebe/cluster/offer"
)

// FuzzOffered: no offer makes a member read beyond it, or note blocks that it does not have.
func FuzzOffered(f *testing.F) {
	for _, r := range []*clusterv1.OfferRequest{
		{}, {Node: "n1", Keys: make([]byte, 64), Tokens: []uint32{5, 9}, Digests: []uint64{0, 7}},
		{Node: "n1", Keys: make([]byte, 31), Tokens: []uint32{5}, Digests: []uint64{0}},
		{Node: "n1", Keys: make([]byte, 32), Tokens: []uint32{1 << 31}, Digests: []uint64{0}},
	} {
		data, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r clusterv1.OfferRequest
		if proto.Unmarshal(data, &r) != nil {
			return
		}
		o, err := offered(&r)
		if err != nil {
			return
		}
		if len(o.Blocks) > offer.Most || o.Node == "" {
			t.Fatalf("%d blocks of %q", len(o.Blocks), o.Node)
		}
		for i, b := range o.Blocks {
			if b.Tokens < 1 || !bytes.Equal(b.Key[:], r.Keys[32*i:32*i+32]) || b.Digest != r.Digests[i] {
				t.Fatalf("block %d is %+v", i, b)
			}
		}
	})
}

// A member without a device takes the class of most nodes.
func TestClass(t *testing.T) {
	c := &listing{}
	add := func(id, role, class string) {
		data, err := member.Record{ID: id, Boot: "b", Peer: "p", Protocol: member.Protocol{Min: 1, Max: 1},
			Roles:  []string{role},
			Models: []member.Model{{Name: "m", Digest: "d", Format: "f", Numerics: class}}}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		c.add(nodesKey+id, data)
	}
	check := func(want string) {
		t.Helper()
		if got, err := Class(t.Context(), c); got != want || err != nil {
			t.Errorf("class %q, %v, want %q", got, err, want)
		}
	}
	check("")
	add("k1", member.KV, "null")
	c.add(nodesKey+"x", []byte("{"))
	check("")
	add("n1", member.Node, "cpu/amx")
	check("cpu/amx")
	add("n2", member.Node, "cpu/avx2")
	check("cpu/amx")
	add("n3", member.Node, "cpu/avx2")
	check("cpu/avx2")
}

// listing is a coordinator that has entries and nothing else.
type listing struct {
	coord.Coordinator
	entries []coord.Entry
}

func (l *listing) add(key string, data []byte) {
	l.entries = append(l.entries, coord.Entry{Key: key, Data: data, Version: 1})
}

func (l *listing) List(context.Context, string) ([]coord.Entry, error) { return l.entries, nil }
