package peer

import (
	"bufio"
	"hash/crc32"
	"io"
	"net"
	"testing"
	"time"
)

// block makes an answer with a payload, sealed for a key.
func block(a answer, payload string, key int) []byte {
	a.payload = int64(len(payload))
	b, sum := a.append(nil)
	k := keyOf(key)
	b = append(b, payload...)
	return le.AppendUint32(b, crc32.Checksum([]byte(payload), castagnoli)^seal(sum, &k))
}

// TestLies: a server's answers make sense by themselves, but not for the GET of keys 0 and 1. No such block is a hit.
func TestLies(t *testing.T) {
	right := func(id uint32, i uint16) []byte { return block(answer{id: id, index: i, status: Hit}, "right", int(i)) }
	for _, c := range []struct {
		name    string
		answers func(id uint32) []byte
		want    [2]Status
		closed  bool // the connection
	}{
		{"the truth", func(id uint32) []byte { return append(right(id, 1), right(id, 0)...) }, [2]Status{Hit, Hit}, false},
		{"another key's block", func(id uint32) []byte {
			return append(right(id, 1), block(answer{id: id, index: 0, status: Hit}, "wrong", 1)...)
		}, [2]Status{Damaged, Hit}, false},
		{"another request's block", func(id uint32) []byte { return append(right(id, 0), right(id-1, 1)...) },
			[2]Status{Hit, Late}, true},
		{"a key twice", func(id uint32) []byte {
			return append(right(id, 0), block(answer{id: id, index: 0, status: Hit}, "wrong", 0)...)
		}, [2]Status{Hit, Late}, true},
		{"a key that nobody asked for", func(id uint32) []byte { return append(right(id, 0), right(id, 2)...) },
			[2]Status{Hit, Late}, true},
		{"another frame's payload", func(id uint32) []byte {
			b := block(answer{id: id, index: 0, status: Hit, meta: []byte("a")}, "right", 0)
			other := block(answer{id: id, index: 0, status: Hit, meta: []byte("b")}, "right", 0)
			copy(b[len(b)-sumSize:], other[len(other)-sumSize:])
			return append(b, right(id, 1)...)
		}, [2]Status{Damaged, Hit}, false},
		{"a miss with a payload", func(id uint32) []byte {
			return block(answer{id: id, index: 0, status: Miss}, "wrong", 0)
		}, [2]Status{Late, Late}, true},
		{"a status that only clients use", func(id uint32) []byte {
			b, _ := (&answer{id: id, status: Declined}).append(nil)
			return b
		}, [2]Status{Late, Late}, true},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			lie(l, c.answers)
		}()
		cl := client(t, map[string]string{"n1": l.Addr().String()})
		g := &Get{Space: space, Wants: wants(0, 1)}
		var s sink
		err = cl.Fetch(within(t, 5*time.Second), "n1", g, s.place)
		if got := [2]Status{g.Wants[0].Status, g.Wants[1].Status}; got != c.want || (err != nil) != c.closed {
			t.Errorf("%s: %v, want %v; error %v", c.name, got, c.want, err)
		}
		for i := range g.Wants {
			if g.Wants[i].Status == Hit && string(s.got[i]) != "right" {
				t.Errorf("%s: want %d is a hit with %q", c.name, i, s.got[i])
			}
		}
		if st, _ := cl.Stats("n1"); (st.Answers[Damaged] != 0) != (c.name != "the truth") {
			t.Errorf("%s: %d damaged", c.name, st.Answers[Damaged])
		}
		cl.Close()
		l.Close()
		<-ended
	}
}

// lie answers the first GET of a connection with given bytes.
func lie(l net.Listener, answers func(id uint32) []byte) {
	c, err := l.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	t := &session{raw: c, r: bufio.NewReaderSize(c, frameHeader+maxBody)}
	for range 2 {
		f, err := t.frame()
		if err != nil {
			return
		}
		out := (&welcome{1, spoken, "n1", ""}).append(nil)
		if f[0] == kindGet {
			out = answers(le.Uint32(f[frameHeader:]))
		}
		_, _ = t.r.Discard(len(f))
		if _, err := c.Write(out); err != nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, c)
}
