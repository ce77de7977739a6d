package call

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"
)

// Kinds of frames.
const (
	kindRequest = 1 + iota
	kindAnswer
	kindFailure
	kindCancel
)

const (
	lengthSize = 4
	headSize   = 1 + 8 // kind and id
)

var (
	errGarbage = errors.New("call: not a frame")
	le         = binary.LittleEndian
)

// begin begins a frame in a buffer.
func begin(buf []byte, kind byte, id uint64) []byte {
	buf = append(buf[:0], 0, 0, 0, 0, kind)
	return le.AppendUint64(buf, id)
}

// end appends a message to a frame and writes the frame's length.
func end(buf []byte, m proto.Message) ([]byte, error) {
	if m != nil {
		var err error
		if buf, err = (proto.MarshalOptions{}).MarshalAppend(buf, m); err != nil {
			return buf, fmt.Errorf("call: %w", err)
		}
	}
	n := len(buf) - lengthSize
	if n > MaxMessage {
		return buf, fmt.Errorf("call: a message of %d bytes, at most %d", n, MaxMessage)
	}
	le.PutUint32(buf, uint32(n))
	return buf, nil
}

// appendRequest appends the fields of a request. Its message is m.
func appendRequest(buf []byte, id uint64, q *Request, m proto.Message) ([]byte, error) {
	buf = append(begin(buf, kindRequest, id), q.Op)
	buf = binary.AppendUvarint(buf, uint64(max(0, q.Left.Microseconds())))
	for _, s := range []string{q.Parent, q.State} {
		buf = append(binary.AppendUvarint(buf, uint64(len(s))), s...)
	}
	return end(buf, m)
}

// appendAnswer appends an answer.
func appendAnswer(buf []byte, id uint64, a *Answer) ([]byte, error) {
	kind, m := byte(kindAnswer), a.Message
	if a.Failed {
		kind, m = kindFailure, nil
	}
	buf = binary.AppendUvarint(begin(buf, kind, id), uint64(max(0, a.Took.Microseconds())))
	backlog := uint64(0)
	if a.Backlog >= 0 {
		backlog = 1 + uint64(a.Backlog.Microseconds())
	}
	buf = binary.AppendUvarint(buf, backlog)
	if a.Failed {
		buf = append(buf, a.Body...)
	}
	return end(buf, m)
}

// frame is a frame that was read.
type frame struct {
	kind byte
	id   uint64
	body []byte // its fields
}

// read reads a frame. The body is the caller's.
func read(r *bufio.Reader) (f frame, err error) {
	var head [lengthSize + headSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	n := int64(le.Uint32(head[:])) - headSize
	f.kind, f.id = head[lengthSize], le.Uint64(head[lengthSize+1:])
	if n < 0 || n > MaxMessage {
		return f, fmt.Errorf("%w: length %d", errGarbage, n+headSize)
	}
	if n <= 1<<20 {
		f.body = make([]byte, n)
		_, err = io.ReadFull(r, f.body)
		return f, err
	}
	var b bytes.Buffer // grows with what comes
	_, err = io.CopyN(&b, r, n)
	f.body = b.Bytes()
	return f, err
}

// fields reads a frame's fields.
type fields struct {
	left []byte
	bad  bool
}

func (f *fields) number() uint64 {
	n, size := binary.Uvarint(f.left)
	if size <= 0 {
		f.bad = true
		return 0
	}
	f.left = f.left[size:]
	return n
}

func (f *fields) micros() time.Duration {
	const most = uint64(1 << 53)
	return time.Duration(min(f.number(), most)) * time.Microsecond
}

func (f *fields) text() string {
	n := f.number()
	if n > uint64(len(f.left)) {
		f.bad = true
		return ""
	}
	s := string(f.left[:n])
	f.left = f.left[n:]
	return s
}

// request reads the fields of a request.
func (f *frame) request() (q Request, err error) {
	if len(f.body) == 0 {
		return q, fmt.Errorf("%w: a request without fields", errGarbage)
	}
	r := fields{left: f.body[1:]}
	q = Request{Op: f.body[0], Left: r.micros(), Parent: r.text(), State: r.text(), Body: r.left}
	if r.bad {
		err = fmt.Errorf("%w: a request with bad fields", errGarbage)
	}
	return q, err
}

// answer reads the fields of an answer or a failure.
func (f *frame) answer() (a Answer, err error) {
	r := fields{left: f.body}
	a = Answer{Failed: f.kind == kindFailure, Took: r.micros(), Backlog: r.micros() - time.Microsecond, Body: r.left}
	a.Body = r.left
	if r.bad {
		err = fmt.Errorf("%w: an answer with bad fields", errGarbage)
	}
	return a, err
}
