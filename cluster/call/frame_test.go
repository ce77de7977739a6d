package call

import (
	"bufio"
	"bytes"
	"testing"
	"time"
)

// What is read from any bytes is written as it was read, and nothing panics.
func FuzzFrame(f *testing.F) {
	request, _ := appendRequest(nil, 7, &Request{Op: 2, Left: time.Second, Parent: "p", State: "s"}, text("body"))
	answer, _ := appendAnswer(nil, 8, &Answer{Took: time.Millisecond, Backlog: 0, Message: text("body")})
	failure, _ := appendAnswer(nil, 9, &Answer{Failed: true, Backlog: -1, Body: []byte("{}")})
	for _, seed := range [][]byte{request, answer, failure, cancelFrame(1), {255, 255, 255, 255, 1},
		{9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bufio.NewReader(bytes.NewReader(data))
		for {
			m, err := read(r)
			if err != nil {
				return
			}
			if q, err := m.request(); m.kind == kindRequest && err == nil {
				again, _ := appendRequest(nil, m.id, &q, nil)
				checkAgain(t, &m, append(again, q.Body...))
			}
			if a, err := m.answer(); m.kind == kindFailure && err == nil {
				again, _ := appendAnswer(nil, m.id, &a)
				checkAgain(t, &m, again)
			}
		}
	})
}

// checkAgain compares a frame with how it is written again. Numbers may be written in a shorter form, or be bounded.
func checkAgain(t *testing.T, m *frame, again []byte) {
	t.Helper()
	le.PutUint32(again, uint32(len(again)-lengthSize))
	f, err := read(bufio.NewReader(bytes.NewReader(again)))
	if err != nil || f.kind != m.kind || f.id != m.id || len(f.body) > len(m.body) {
		t.Fatalf("%+v was written as %x: %+v, %v", m, again, f, err)
	}
	q, err := f.request()
	p, _ := m.request()
	if m.kind == kindRequest && (err != nil || q.Op != p.Op || q.Left != p.Left || q.Parent != p.Parent ||
		q.State != p.State ||
		!bytes.Equal(q.Body, p.Body)) {
		t.Fatalf("%+v was read as %+v: %v", p, q, err)
	}
	a, err := f.answer()
	b, _ := m.answer()
	if m.kind == kindFailure && (err != nil || a.Took != b.Took || a.Backlog != b.Backlog ||
		!bytes.Equal(a.Body, b.Body)) {
		t.Fatalf("%+v was read as %+v: %v", b, a, err)
	}
}
