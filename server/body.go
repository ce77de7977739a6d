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

// The server counts the bytes of bodies as they arrive, not what clients declare. It cuts off clients that send
// slower than minRate, after a grace period. A request takes its slot when its body is complete, so slow clients hold
// no slots.
const (
	minRate   = 4 << 10          // bytes per second
	bodyGrace = 10 * time.Second // that a client may be slower than minRate
	// bodySpread is the longest random extension of bodyGrace. It keeps the server from cutting off all clients of a
	// burst at once.
	bodySpread = 900 * time.Millisecond
	// smallBody is the size that a body may always have: while MaxBuffered is nearly used up, and whatever the limits
	// of its connection and key.
	smallBody = 64 << 10
	// firstBytes is the most memory that is allocated for a body before its first byte arrives.
	firstBytes = 4 << 10
)

var errSlowBody = serve.Errorf(serve.RequestTimeout, "", "the body arrives too slowly: less than %d bytes a second",
	minRate)

// intake counts the bytes of large bodies by connection and by key.
type intake struct {
	mu   sync.Mutex
	held map[string]int64
}

// add counts n bytes for an owner. It returns false, and counts nothing, if the owner would hold more than most
// bytes.
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

// meteredBody is a body whose bytes are counted and whose client is cut off if it is too slow.
type meteredBody struct {
	io.ReadCloser
	s         *Server
	conn, key string    // the sender; the key's name may be empty
	until     time.Time // when the body must be complete; zero: no such time
	budget    time.Duration
	timed     bool
	// limit sets the deadlines of the connection; a zero time removes the read deadline.
	limit func(read time.Time)
	held  int64
	owned int64 // bytes of held that intake counts for conn and key
}

// meter replaces a request's body by one that is counted. The caller MUST call free on it.
func (s *Server) meter(w http.ResponseWriter, r *http.Request, key string, stream bool) *meteredBody {
	c := http.NewResponseController(w)
	b := &meteredBody{ReadCloser: r.Body, s: s, conn: r.RemoteAddr, key: key, budget: bodyGrace + rand.N(bodySpread),
		timed: true}
	if !stream {
		b.until = time.Now().Add(s.cfg.ReadTimeout)
	}
	b.limit = func(read time.Time) {
		// Connections without deadlines, as in tests, return an error; it does not matter.
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
		b.limit(time.Time{}) // the client's time ends here
	}
	return b.took(n, err)
}

// took counts bytes that were read. It returns an error instead if they exceed a limit.
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
		return serve.Errorf(serve.Exhausted, "", "the bodies of requests in flight exceed %d bytes", limit)
	}
	if b.held <= smallBody {
		return nil
	}
	more := b.held - b.owned
	if !b.s.intake.add("c"+b.conn, more, max(limit/4, b.s.cfg.MaxBody)) {
		return serve.Errorf(serve.Exhausted, "", "the bodies of this connection's requests exceed %d bytes",
			max(limit/4, b.s.cfg.MaxBody))
	}
	if b.key != "" && !b.s.intake.add("k"+b.key, more, max(limit/2, b.s.cfg.MaxBody)) {
		b.s.intake.add("c"+b.conn, -more, 0)
		return serve.Errorf(serve.Exhausted, "", "the bodies of this key's requests exceed %d bytes",
			max(limit/2, b.s.cfg.MaxBody))
	}
	b.owned = b.held
	return nil
}

// keep lowers the count to the n bytes of the body that are still in memory.
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

// receive reads a request's body to its end, so that handlers never wait for a client.
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

// queue waits for a slot for writes. Unlike admit it does not refuse the request if there is none.
func (s *Server) queue(ctx context.Context) (release func(), err error) {
	select {
	case s.writes <- struct{}{}:
		return func() { <-s.writes }, nil
	case <-ctx.Done():
		return nil, asError(ctx.Err())
	}
}
