package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"syscall"
	"time"
)

// session is a connection that a server answers. One goroutine owns it.
type session struct {
	server *Server
	raw    net.Conn
	cork   *cork     // below TLS; nil without
	c      io.Writer // the connection, or TLS on it
	r      *bufio.Reader

	out   []byte    // frames and small payloads that wait to be sent
	since time.Time // when the first of them began to wait
	tail  [sumSize]byte
	parts net.Buffers
	base  net.Buffers // the memory of parts
	req   request
	block Block
	sent  *sent // to the node at the other end
}

const (
	greetTime = 5 * time.Second        // for a new connection to authenticate and to say what it speaks
	idleTime  = 3 * time.Minute        // a connection without a request for longer is closed; clients close theirs sooner
	grace     = 100 * time.Millisecond // beyond the budget, for the client to read what is on its way
	patience  = 500 * time.Microsecond // answers wait for others no longer than this and one read
	outSize   = 64 << 10
	small     = 8 << 10 // a payload up to this size is copied: that costs less than a system call's bookkeeping
)

// handle answers a connection until it ends.
func (s *Server) handle(ctx context.Context, raw net.Conn) {
	t := &session{server: s, raw: raw, out: make([]byte, 0, outSize), base: make(net.Buffers, 0, 16)}
	if err := t.greet(ctx); err != nil {
		if ctx.Err() == nil {
			s.refuse(raw, err)
		}
		return
	}
	for {
		_ = raw.SetReadDeadline(time.Now().Add(idleTime))
		err := t.answer(ctx)
		if errors.Is(err, errGarbage) {
			s.stats.wrong.Add(1)
			s.opt.Log.Debug("peer: closed a connection", "from", raw.RemoteAddr(), "reason", err)
		}
		if err != nil {
			return
		}
	}
}

// greet authenticates the other side and agrees on a version.
func (t *session) greet(ctx context.Context) error {
	s := t.server
	if err := t.raw.SetDeadline(time.Now().Add(greetTime)); err != nil {
		return err
	}
	var r io.Reader = t.raw
	t.c = t.raw
	var from string
	if s.opt.TLS != nil {
		t.cork = &cork{Conn: t.raw}
		c := tls.Server(t.cork, s.opt.TLS)
		if err := c.HandshakeContext(ctx); err != nil {
			return err
		}
		var err error
		if from, err = s.opt.NodeOf(c.ConnectionState()); err != nil {
			return err
		}
		r, t.c = c, c
	} else if s.opt.NodeOf != nil {
		secured, ok := t.raw.(interface{ ConnectionState() tls.ConnectionState })
		if !ok {
			return errors.New("the connection is not secured")
		}
		var err error
		if from, err = s.opt.NodeOf(secured.ConnectionState()); err != nil {
			return err
		}
	}
	t.r = bufio.NewReaderSize(r, frameHeader+maxBody)
	f, err := t.frame()
	if err != nil {
		return err
	}
	if f[0] != kindHello {
		return fmt.Errorf("%w: kind %d, want a hello", errGarbage, f[0])
	}
	var h hello
	if err := h.decode(f[frameHeader:]); err != nil {
		return err
	}
	_, _ = t.r.Discard(len(f))
	w := welcome{version: s.versions.common(h.versions), versions: s.versions, node: s.opt.Node}
	switch {
	case w.version == 0:
		err = fmt.Errorf("%w: node %s speaks protocol %v", ErrVersion, h.from, h.versions)
	case h.to != s.opt.Node:
		err = fmt.Errorf("this is node %s, not %s", s.opt.Node, h.to)
	case from != "" && from != h.from:
		err = fmt.Errorf("node %s says that it is %s", from, h.from)
	}
	if err != nil {
		w.version, w.reason = 0, err.Error()
	}
	if _, sent := t.c.Write(w.append(nil)); sent != nil {
		return sent
	}
	if t.cork != nil {
		t.cork.on = true
	}
	if err == nil {
		t.sent = s.sentTo(h.from)
	}
	return err
}

// frame reads a frame and leaves it in the buffer: the caller uses it and then discards it.
func (t *session) frame() ([]byte, error) {
	h, err := t.r.Peek(frameHeader)
	if err != nil {
		return nil, err
	}
	n, err := frameLength(h)
	if err != nil {
		return nil, err
	}
	f, err := t.r.Peek(frameHeader + n)
	if err != nil {
		return nil, err
	}
	_, err = openFrame(f)
	return f, err
}

// answer reads a request and answers it.
func (t *session) answer(ctx context.Context) error {
	f, err := t.frame()
	if err != nil {
		return err
	}
	now := time.Now()
	switch f[0] {
	case kindPing:
		_, _ = t.r.Discard(len(f))
		t.out = beginFrame(t.out[:0], kindPong)
		endFrame(t.out, 0)
		if err := t.raw.SetWriteDeadline(now.Add(greetTime)); err != nil {
			return err
		}
		return t.flush()
	case kindGet:
		err := t.req.decode(f[frameHeader:])
		_, _ = t.r.Discard(len(f))
		if err != nil {
			return err
		}
		return t.get(ctx, now)
	}
	return fmt.Errorf("%w: kind %d is no request", errGarbage, f[0])
}

// get answers a GET that came at now.
func (t *session) get(ctx context.Context, now time.Time) error {
	deadline := now.Add(min(time.Duration(t.req.budget)*time.Millisecond, MaxBudget))
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if err := t.raw.SetWriteDeadline(deadline.Add(grace)); err != nil {
		return err
	}
	t.out = t.out[:0]
	for i := range t.req.wants {
		if err := t.one(ctx, i, deadline); err != nil {
			return err
		}
	}
	return t.flush()
}

// one answers for one key.
func (t *session) one(ctx context.Context, i int, deadline time.Time) error {
	s, now := t.server, time.Now()
	if len(t.out) == 0 {
		t.since = now
	}
	if now.Sub(t.since) > patience { // reads are slow
		if err := t.flush(); err != nil {
			return err
		}
	}
	status := t.read(ctx, &t.req.wants[i], !now.Before(deadline))
	s.stats.of[status].Add(1)
	a := answer{id: t.req.id, index: uint16(i), status: status}
	if status != Hit {
		t.out, _ = a.append(t.out)
		return t.flushAbove(outSize / 2)
	}
	defer t.release()
	a.payload, a.meta = size(t.block.Pieces), t.block.Meta
	s.stats.bytes.Add(a.payload)
	t.sent.blocks.Add(1)
	t.sent.bytes.Add(a.payload)
	var sum uint32
	t.out, sum = a.append(t.out)
	return t.send(&t.block, a.payload, seal(sum, &t.req.wants[i].Key))
}

// read reads the block of a want within the server's bounds. After a Hit the caller MUST release it.
func (t *session) read(ctx context.Context, w *Want, late bool) Status {
	s := t.server
	if !s.opt.Epoch(t.req.epoch) {
		return WrongEpoch
	}
	if s.reads.Add(1) > int64(s.opt.MaxReads) || late {
		s.reads.Add(-1)
		return Busy
	}
	t.block = Block{Meta: t.block.Meta[:0], Pieces: t.block.Pieces[:0]}
	status := s.opt.Holder.Read(ctx, &t.req.space, w, &t.block)
	if status != Hit {
		s.reads.Add(-1)
		if status != Miss {
			status = Busy
		}
		return status
	}
	n := size(t.block.Pieces)
	switch held := s.bytes.Add(n); {
	case n > MaxPayload || len(t.block.Meta) > MaxMeta:
		s.opt.Log.Warn("peer: a block is too large to be sent", "bytes", n, "meta", len(t.block.Meta))
		status = Miss
	case held > s.opt.MaxBytes && held != n:
		status = Busy
	case !s.opt.Epoch(t.req.epoch): // the map changed during the read
		status = WrongEpoch
	}
	if status != Hit {
		t.release()
	}
	return status
}

// release ends the use of a block that was read.
func (t *session) release() {
	s := t.server
	s.bytes.Add(-size(t.block.Pieces))
	s.reads.Add(-1)
	s.opt.Holder.Release(&t.block)
	clear(t.block.Pieces)
	t.block.Ref = nil
}

func size(pieces [][]byte) (n int64) {
	for _, p := range pieces {
		n += int64(len(p))
	}
	return n
}

// send sends a block's payload of n bytes behind what waits in out, and then its checksum. It computes the checksum as
// it goes, while the bytes are in the processor's cache, unless the holder knows it.
func (t *session) send(b *Block, n int64, seal uint32) error {
	if n <= small {
		for _, p := range b.Pieces {
			t.out = append(t.out, p...)
		}
		if !b.Summed {
			b.Sum, b.Summed = crc32.Checksum(t.out[len(t.out)-int(n):], castagnoli), true
		}
		t.out = le.AppendUint32(t.out, b.Sum^seal)
		return t.flushAbove(outSize / 2)
	}
	t.parts = append(t.base[:0], t.out)
	sum, room, most := uint32(0), int64(step), int64(step)
	if b.Summed {
		room, most = n, n
	}
	for _, p := range b.Pieces {
		for len(p) > 0 {
			part := p[:min(room, int64(len(p)))]
			if !b.Summed {
				sum = crc32.Update(sum, castagnoli, part)
			}
			t.parts = append(t.parts, part)
			p, room, n = p[len(part):], room-int64(len(part)), n-int64(len(part))
			if n > 0 && room == 0 {
				if err := t.write(); err != nil {
					return err
				}
				room = most
			}
		}
	}
	if !b.Summed {
		b.Sum, b.Summed = sum, true
	}
	le.PutUint32(t.tail[:], b.Sum^seal)
	t.parts = append(t.parts, t.tail[:])
	return t.write()
}

// write sends the parts. Its caller wrote what waits in out as the first of them.
func (t *session) write() error {
	t.base = t.parts[:0]
	var err error
	if t.cork == nil {
		_, err = t.parts.WriteTo(t.raw)
	} else {
		for _, p := range t.parts {
			if _, err = t.c.Write(p); err != nil {
				break
			}
		}
		if err == nil {
			err = t.cork.flush()
		}
	}
	clear(t.base[:cap(t.base)])
	t.parts, t.out = t.base, t.out[:0]
	return err
}

// flush sends what waits in out.
func (t *session) flush() error {
	if len(t.out) == 0 {
		return nil
	}
	t.parts = append(t.base[:0], t.out)
	return t.write()
}

func (t *session) flushAbove(n int) error {
	if len(t.out) < n {
		return nil
	}
	return t.flush()
}

// isTemporary reports whether accepting connections may work again later.
func isTemporary(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
