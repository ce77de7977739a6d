package peer

import (
	"bufio"
	"bytes"
	"net"
	"testing"
	"time"
)

// FuzzDecode: no bytes make a decoder panic, read beyond its input or accept more than the bounds; what it accepts
// survives another round.
func FuzzDecode(f *testing.F) {
	g := &Get{Epoch: 1, Space: space, Wants: wants(1, 2, 3)}
	f.Add(appendGet(nil, 1, g, 2, []uint16{0, 1, 2}))
	f.Add((&hello{spoken, "a", "b"}).append(nil))
	f.Add((&welcome{1, spoken, "a", "why"}).append(nil))
	hit, _ := (&answer{1, 2, Hit, 3, []byte("meta")}).append(nil)
	f.Add(hit)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < frameHeader {
			return
		}
		b[1] = 0
		endFrame(b, 0) // a fuzzer does not find checksums
		if n, err := frameLength(b); err != nil || n != len(b)-frameHeader {
			return
		}
		body, err := openFrame(b)
		if err != nil {
			t.Fatal(err)
		}
		switch b[0] {
		case kindHello:
			var x, y hello
			if x.decode(body) == nil && (y.decode(x.append(nil)[frameHeader:]) != nil || x != y) {
				t.Errorf("%+v became %+v", x, y)
			}
		case kindWelcome:
			var x, y welcome
			if x.decode(body) == nil && (y.decode(x.append(nil)[frameHeader:]) != nil || x != y) {
				t.Errorf("%+v became %+v", x, y)
			}
		case kindGet:
			var x, y request
			if x.decode(body) != nil {
				return
			}
			which := make([]uint16, len(x.wants))
			for i := range which {
				which[i] = uint16(i)
			}
			again := appendGet(nil, x.id, &Get{Epoch: x.epoch, Space: x.space, Wants: x.wants}, x.budget, which)
			if y.decode(again[frameHeader:]) != nil || len(x.wants) > MaxWants || len(x.wants) != len(y.wants) ||
				x.space != y.space {
				t.Errorf("%+v became %+v", x, y)
			}
		case kindBlock:
			var x, y answer
			if x.decode(body) != nil {
				return
			}
			again, _ := x.append(nil)
			if y.decode(again[frameHeader:]) != nil || !bytes.Equal(x.meta, y.meta) || x.payload != y.payload ||
				x.payload > MaxPayload ||
				x.status < Hit || x.status > WrongEpoch {
				t.Errorf("%+v became %+v", x, y)
			}
		}
	})
}

// bytesConn is a connection that has received some bytes.
type bytesConn struct {
	net.Conn
	r *bytes.Reader
}

func (c bytesConn) Read(b []byte) (int, error)       { return c.r.Read(b) }
func (c bytesConn) SetReadDeadline(time.Time) error  { return nil }
func (c bytesConn) SetWriteDeadline(time.Time) error { return nil }

type nobody struct{}

func (nobody) moves()      {}
func (nobody) stalls(bool) {}

// FuzzAnswers: a client reads any bytes as the answers to a GET without a panic, and without writing beyond the memory
// that it was given. Frames with a wrong checksum are given a right one, so that the fuzzer gets beyond them.
func FuzzAnswers(f *testing.F) {
	a, sum := (&answer{1, 0, Hit, 3, []byte("meta")}).append(nil)
	w := wants(1, 2)
	a = append(a, 1, 2, 3)
	a = le.AppendUint32(a, sum^seal(sum, &w[0].Key))
	b, _ := (&answer{1, 1, Miss, 0, nil}).append(nil)
	f.Add(append(a, b...))
	f.Add(b)
	f.Fuzz(func(t *testing.T, data []byte) {
		for at := 0; len(data)-at >= frameHeader; {
			n := int(le.Uint32(data[at+4:])) % 4096
			if at+frameHeader+n > len(data) {
				break
			}
			endFrame(data[:at+frameHeader+n], at)
			var x answer
			if x.decode(data[at+frameHeader:at+frameHeader+n]) != nil {
				break
			}
			if at += frameHeader + n; x.status == Hit {
				at += int(x.payload) + sumSize
			}
			if at > len(data) {
				break
			}
		}
		p := &peer{}
		l := &line{Conn: bytesConn{r: bytes.NewReader(data)}, watch: nobody{}, deadline: time.Now().Add(time.Minute)}
		n := &conn{line: l, c: l, r: bufio.NewReaderSize(l, frameHeader+maxBody), id: 1, left: 2}
		placed := map[int][]byte{}
		g := &Get{Space: space, Wants: wants(1, 2)}
		j := &job{get: g, readers: make([]*leg, 2), place: func(i int, _ []byte, n int64) ([][]byte, error) {
			if n > 1<<20 {
				return nil, errGarbage
			}
			placed[i] = bytes.Repeat([]byte{7}, int(n)+16)
			return [][]byte{placed[i][8 : 8+n]}, nil
		}}
		leg := &leg{job: j, peer: p, list: []uint16{0, 1}, open: 2}
		leg.owes[0] = 3
		err := leg.read(n)
		for i, b := range placed {
			for _, edge := range [][]byte{b[:8], b[len(b)-8:]} {
				if !bytes.Equal(edge, bytes.Repeat([]byte{7}, 8)) {
					t.Errorf("memory beside that of want %d was written", i)
				}
			}
		}
		for i := range g.Wants {
			if g.Wants[i].Status == Hit && placed[i] == nil {
				t.Errorf("want %d is a hit without memory", i)
			}
			if err == nil && g.Wants[i].Status == Late {
				t.Errorf("want %d is late without an error", i)
			}
		}
	})
}
