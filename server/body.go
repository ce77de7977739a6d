package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"time"

	"grebe/serve"
)

// Bodies are counted as their bytes arrive: what a client declares costs nothing. A client that sends slower than
// minRate, beyond what it may keep the server waiting, is cut off. A request takes its place among those under way
// when its body is complete, so that slow clients take none.
const (
	minRate   = 4 << 10          // bytes per second
	bodyGrace = 10 * time.Second // that a client may keep the server waiting, besides
	// bodySpread is by how much some have longer, at random: clients that came together are not all cut off at once.
	bodySpread = 900 * time.Millisecond
	// smallBody is what a body may hold while others use nearly all of MaxBuffered, and whatever else its
	// connection and its key hold.
	smallBody = 64 << 10
	// firstBytes is for how much of a body there is memory before any of it arrives.
	firstBytes = 4 << 10
)

var errSlowBody = serve.Errorf(serve.RequestTimeout, "", "the body comes too slowly: less than %d bytes a second", minRate)

// intake counts the bytes of large bodies by connection and by key.
type intake struct {
	mu   sync.Mutex
	held map[string]int64
}

// add counts bytes of an owner, who may hold so many; false: they are not counted.
func (in *intake) add(owner string, n, most int64) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if n > 0 && in.held[owner]+n > most {
		return false
	}
	if in.held == nil {
		in.held = map[string]int64{}
	}
	if in.held[owner] += n; in.held[owner] <= 0 {
		delete(in.held, owner)
	}
	return true
}

// meteredBody counts the bytes of a body among those under way, and bounds how long its client may take.
type meteredBody struct {
	io.ReadCloser
	s         *Server
	conn, key string    // who sends it; the key's name may be empty
	until     time.Time // when it must be complete; zero: when the budget is spent
	budget    time.Duration
	timed     bool
	// limit moves the deadlines of the connection; a zero time removes that of reads.
	limit func(read time.Time)
	held  int64
	owned int64 // of held, counted for conn and key
}

// meter has a request's body counted; the caller MUST call free on it.
func (s *Server) meter(w http.ResponseWriter, r *http.Request, key string, stream bool) *meteredBody {
	c := http.NewResponseController(w)
	b := &meteredBody{ReadCloser: r.Body, s: s, conn: r.RemoteAddr, key: key, budget: bodyGrace + rand.N(bodySpread), timed: true}
	if !stream {
		b.until = time.Now().Add(s.cfg.ReadTimeout)
	}
	b.limit = func(read time.Time) {
		// Connections without deadlines, as in tests, need none.
		_ = c.SetReadDeadline(read)
		if stream {
			_ = c.SetWriteDeadline(time.Now().Add(s.cfg.WriteTimeout))
		}
	}
	r.Body = b
	return b
}

func (b *meteredBody) Read(p []byte) (int, error) {
	if !b.timed {
		n, err := b.ReadCloser.Read(p)
		return b.took(n, err)
	}
	if b.budget <= 0 {
		return 0, errSlowBody
	}
	start := time.Now()
	end := start.Add(b.budget)
	if !b.until.IsZero() && b.until.Before(end) {
		end = b.until
	}
	b.limit(end)
	n, err := b.ReadCloser.Read(p)
	b.budget = min(bodyGrace, b.budget-time.Since(start)+time.Duration(n)*time.Second/minRate)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errSlowBody
	case err != nil:
		b.limit(time.Time{}) // what follows is not the client's time
	}
	return b.took(n, err)
}

// took counts bytes that were read.
func (b *meteredBody) took(n int, err error) (int, error) {
	if refused := b.hold(int64(n)); refused != nil {
		return 0, refused
	}
	return n, err
}

func (b *meteredBody) hold(n int64) error {
	limit := b.s.cfg.MaxBuffered
	b.held += n
	total := b.s.bodies.Add(n)
	if total > limit || b.held > smallBody && total > limit-limit/8 {
		return serve.Errorf(serve.Exhausted, "", "the requests under way have %d bytes", limit)
	}
	if b.held <= smallBody {
		return nil
	}
	more := b.held - b.owned
	if !b.s.intake.add("c"+b.conn, more, max(limit/4, b.s.cfg.MaxBody)) {
		return serve.Errorf(serve.Exhausted, "", "the requests of this connection have %d bytes", max(limit/4, b.s.cfg.MaxBody))
	}
	if b.key != "" && !b.s.intake.add("k"+b.key, more, max(limit/2, b.s.cfg.MaxBody)) {
		b.s.intake.add("c"+b.conn, -more, 0)
		return serve.Errorf(serve.Exhausted, "", "the requests of this key have %d bytes", max(limit/2, b.s.cfg.MaxBody))
	}
	b.owned = b.held
	return nil
}

// keep says that no more than n bytes of what was read are still in memory.
func (b *meteredBody) keep(n int64) {
	if n >= b.held {
		return
	}
	b.s.bodies.Add(n - b.held)
	b.held = n
	if less := b.owned - n; less > 0 {
		b.s.intake.add("c"+b.conn, -less, 0)
		if b.key != "" {
			b.s.intake.add("k"+b.key, -less, 0)
		}
		b.owned = n
	}
}

func (b *meteredBody) free() { b.keep(0) }

// wholeBody is a body that was read to its end.
type wholeBody struct {
	*bytes.Reader
	data []byte
}

func (wholeBody) Close() error { return nil }

// receive reads a request's body to its end.
func (s *Server) receive(w http.ResponseWriter, r *http.Request) error {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(min(r.ContentLength, firstBytes)) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, s.cfg.MaxBody)); err != nil {
		return readError(r, err)
	}
	r.Body = wholeBody{bytes.NewReader(buf.Bytes()), buf.Bytes()}
	return nil
}

// queue takes a place among the writes under way as admit does, but waits for one.
func (s *Server) queue(ctx context.Context) (release func(), err error) {
	select {
	case s.writes <- struct{}{}:
		return func() { <-s.writes }, nil
	case <-ctx.Done():
		return nil, asError(ctx.Err())
	}
}
