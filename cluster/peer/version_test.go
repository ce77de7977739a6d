package peer

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestMixedVersions(t *testing.T) {
	m := &memory{}
	m.put(keyOf(1), &held{pieces: [][]byte{make([]byte, 1000)}})
	for _, c := range []struct {
		server, client versions
		agreed         uint16 // 0: none
	}{
		{versions{1, 1}, versions{1, 1}, 1},
		{versions{1, 1}, versions{1, 2}, 1},
		{versions{1, 2}, versions{1, 1}, 1},
		{versions{1, 2}, versions{2, 3}, 2},
		{versions{2, 3}, versions{1, 2}, 2},
		{versions{1, 1}, versions{2, 3}, 0},
		{versions{3, 4}, versions{1, 2}, 0},
	} {
		n := serve(t, ServerOptions{Holder: m}, func(s *Server) { s.versions = c.server })
		cl := client(t, map[string]string{"n1": n.addr}, func(cl *Client) { cl.versions = c.client })
		g := &Get{Space: space, Wants: wants(1)}
		err := cl.Fetch(within(t, 5*time.Second), "n1", g, new(sink).place)
		if c.agreed == 0 {
			if !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), c.server.String()) ||
				!strings.Contains(err.Error(), c.client.String()) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil || g.Wants[0].Status != Hit {
			t.Errorf("%+v: %v, %v", c, err, g.Wants[0].Status)
		}
		p, err := cl.peer("n1")
		if err != nil {
			t.Fatal(err)
		}
		if v := p.idle[0].version; v != c.agreed {
			t.Errorf("%+v: agreed on %d", c, v)
		}
	}
}

// TestLaterVersionsMayAppend: bytes behind the fields that this version knows are ignored, in every kind of frame.
func TestLaterVersionsMayAppend(t *testing.T) {
	extra := func(f []byte) []byte { return append(f[frameHeader:], "something new"...) }
	var h hello
	if err := h.decode(extra((&hello{versions{1, 2}, "a", "b"}).append(nil))); err != nil ||
		h != (hello{versions{1, 2}, "a", "b"}) {
		t.Errorf("%+v, %v", h, err)
	}
	var w welcome
	sent := welcome{2, versions{1, 2}, "a", "why"}
	if err := w.decode(extra(sent.append(nil))); err != nil || w != sent {
		t.Errorf("%+v, %v", w, err)
	}
	var r request
	g := &Get{Epoch: 3, Space: space, Wants: wants(1, 2)}
	g.Wants[1].Tokens, g.Wants[1].Digest = 5, 6
	if err := r.decode(extra(appendGet(nil, 7, g, 8, []uint16{1, 0}))); err != nil || r.id != 7 || r.epoch != 3 ||
		r.budget != 8 ||
		r.space != space || len(r.wants) != 2 || r.wants[0] != g.Wants[1] || r.wants[1] != g.Wants[0] {
		t.Errorf("%+v, %v", r, err)
	}
	var a answer
	f, _ := (&answer{1, 2, Hit, 3, []byte("meta")}).append(nil)
	if err := a.decode(extra(f)); err != nil || a.id != 1 || a.index != 2 || a.status != Hit || a.payload != 3 ||
		string(a.meta) != "meta" {
		t.Errorf("%+v, %v", a, err)
	}
}
