package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"grebe/internal/wire"
	"grebe/serve"
)

// Lobby answers on a server's listeners before the server can: the process is live, it is not ready, and why.
type Lobby struct {
	why   atomic.Pointer[string]
	webs  []*http.Server
	calls *grpc.Server
	lent  []*lentListener
	wg    sync.WaitGroup
}

// OpenLobby answers on the listeners until Leave. The caller MUST call Leave; the listeners stay open then. secure
// may be nil.
func OpenLobby(l Listeners, secure *tls.Config) *Lobby {
	b := &Lobby{}
	b.Say("starting")
	for _, ln := range []net.Listener{l.HTTP, l.Admin} {
		if ln == nil {
			continue
		}
		web := &http.Server{Handler: http.HandlerFunc(b.answer), ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout: 5 * time.Second, MaxHeaderBytes: 64 << 10}
		web.SetKeepAlivesEnabled(false) // the server answers the next request
		b.webs = append(b.webs, web)
		lent := b.lend(ln)
		if secure != nil && ln == l.HTTP {
			web.TLSConfig = secure
			b.wg.Go(func() { _ = web.ServeTLS(lent, "", "") }) // returns after Shutdown
			continue
		}
		web.Protocols = new(http.Protocols)
		web.Protocols.SetHTTP1(true)
		web.Protocols.SetUnencryptedHTTP2(true)
		b.wg.Go(func() { _ = web.Serve(lent) })
	}
	if l.GRPC != nil {
		b.openCalls(b.lend(l.GRPC), secure)
	}
	return b
}

func (b *Lobby) openCalls(ln net.Listener, secure *tls.Config) {
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(64 << 10),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			return status.Error(codes.Unavailable, *b.why.Load())
		}),
	}
	if secure != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(secure)))
	}
	b.calls = grpc.NewServer(opts...)
	state := health.NewServer()
	state.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(b.calls, state)
	b.wg.Go(func() { _ = b.calls.Serve(ln) })
}

// Say sets the reason for not being ready that clients see.
func (b *Lobby) Say(why string) { b.why.Store(&why) }

// lobbyRetry is the value of Retry-After, in seconds.
const lobbyRetry = 2

func (b *Lobby) answer(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", strconv.Itoa(int(codes.Unavailable)))
		h.Set("Grpc-Message", *b.why.Load())
		return
	}
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.URL.Path == "/v2/health/live" || r.URL.Path == "/livez" {
		_, _ = w.Write(alive)
		return
	}
	h.Set("Retry-After", strconv.Itoa(lobbyRetry))
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write(wire.EncodeError(string(serve.Unavailable), *b.why.Load(), "")) // fails only if the client is gone
}

// Leave ends the lobby. Clients that connect after that wait for the server.
func (b *Lobby) Leave() {
	ctx, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
	defer cancel()
	for _, web := range b.webs {
		if web.Shutdown(ctx) != nil {
			_ = web.Close()
		}
	}
	if b.calls != nil {
		b.calls.Stop()
	}
	b.wg.Wait()
	for _, ln := range b.lent {
		ln.giveBack()
	}
}

// lend wraps a listener so that it survives Close.
func (b *Lobby) lend(ln net.Listener) net.Listener {
	l := &lentListener{Listener: ln}
	b.lent = append(b.lent, l)
	return l
}

// lentListener stays open when it is closed, and can be used again after giveBack.
type lentListener struct {
	net.Listener
	closed atomic.Bool
}

type deadliner interface{ SetDeadline(time.Time) error }

func (l *lentListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil && l.closed.Load() {
		err = net.ErrClosed
	}
	return c, err
}

// Close makes a waiting Accept return. It closes a listener without deadlines for good.
func (l *lentListener) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	if d, ok := l.Listener.(deadliner); ok {
		return d.SetDeadline(time.Unix(1, 0))
	}
	return errors.Join(l.Listener.Close(), errors.ErrUnsupported)
}

// giveBack makes the listener usable again.
func (l *lentListener) giveBack() {
	if d, ok := l.Listener.(deadliner); ok {
		_ = d.SetDeadline(time.Time{}) // fails only if it was closed, which the next Accept reports
	}
}
