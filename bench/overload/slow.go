package overload

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"grebe/bench/load"
	"grebe/workload"
)

// Slow is what another client saw beside slow connections of a kind.
type Slow struct {
	Kind     string  `json:"kind"`
	Open     int     `json:"connections"` // or streams, on a few connections
	IdleMS   float64 `json:"idle_p99_ms"`
	BesideMS float64 `json:"beside_p99_ms"`
	Ratio    float64 `json:"ratio"`
	Failed   int     `json:"failed"` // of the other client's requests
	Passed   bool    `json:"passed"`
}

const rankHead = "POST /v1/rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

// kinds are ways to keep a server waiting: the beginning of a request, and what follows every second. A kind with a
// path is a stream of HTTP/2 whose body does not come.
var kinds = []struct{ name, begin, more, path string }{
	{name: "half-open"},
	{name: "half-header", begin: "POST /v1/rank HTTP/1.1\r\nHost: loc"},
	{name: "declared", begin: rankHead + "Content-Length: 16000000\r\n\r\n"},
	{name: "declared-slow", begin: rankHead + "Content-Length: 16000000\r\n\r\n", more: " "},
	{name: "chunked", begin: rankHead + "Transfer-Encoding: chunked\r\n\r\n"},
	{name: "chunked-slow", begin: rankHead + "Transfer-Encoding: chunked\r\n\r\n", more: "1\r\n \r\n"},
	{name: "batch-slow", begin: strings.Replace(rankHead, "/v1/rank", "/v1/items:batch", 1) +
		"Transfer-Encoding: chunked\r\n\r\n", more: "1\r\n\n\r\n"},
	{name: "h2c-streams", path: "/v1/rank"},
	{name: "h2c-batch", path: "/v1/items:batch"},
	{name: "grpc-streams", path: "/grebe.v1.Grebe/Rank"},
}

// Kinds are the names of all kinds.
func Kinds() []string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.name)
	}
	return out
}

// slow measures another client's requests beside each kind, between two measurements of the idle server.
func (c *client) slow(ctx context.Context, o *Options, r *Report) error {
	watched := min(10*time.Second, o.Duration)
	measure := func() (load.Result, error) {
		return load.Open(ctx, load.Options{Name: "another client", Arrivals: workload.Poisson(.3*r.Capacity, 7),
			Duration: watched,
			Timeout:  patience, Classify: classOf,
		}, func(ctx context.Context, i int) error { return c.rank(ctx, i, c.candidates, patience) })
	}
	before, err := measure()
	if err != nil {
		return err
	}
	for _, k := range kinds {
		if len(o.Slow) > 0 && !slices.Contains(o.Slow, k.name) {
			continue
		}
		h := &holder{addr: c.addr, begin: k.begin, more: k.more, path: k.path}
		h.start(ctx, o.Conns)
		beside, err := measure()
		open := int(h.open.Load())
		h.stop()
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		after, err := measure()
		if err != nil {
			return fmt.Errorf("after %s: %w", k.name, err)
		}
		s := Slow{Kind: k.name, Open: open, IdleMS: (before.Latency.P99 + after.Latency.P99) / 2,
			BesideMS: beside.Latency.P99,
			Failed:   beside.Requests - beside.Answered}
		s.Ratio = s.BesideMS / s.IdleMS
		s.Passed = s.Ratio <= slowBar && s.Failed == 0
		r.Slow, r.Passed = append(r.Slow, s), r.Passed && s.Passed
		before = after
	}
	return nil
}

// holder keeps connections open that send nothing or little, and opens others for those that the server ends.
type holder struct {
	addr, begin, more, path string
	open                    atomic.Int64

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// streams is how many streams of HTTP/2 share a connection.
const streams = 100

func (h *holder) start(ctx context.Context, n int) {
	ctx, h.cancel = context.WithCancel(ctx)
	var tr *http.Transport
	for i := range n {
		if h.path != "" && i%streams == 0 {
			tr = &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
			tr.Protocols.SetUnencryptedHTTP2(true)
			context.AfterFunc(ctx, tr.CloseIdleConnections)
		}
		shared := tr
		h.wg.Go(func() {
			for ctx.Err() == nil {
				if shared != nil {
					h.stream(ctx, shared)
				} else {
					h.hold(ctx)
				}
				pause(ctx, time.Second)
			}
		})
	}
	for range 100 { // until all are open
		if int(h.open.Load()) >= n {
			break
		}
		pause(ctx, 20*time.Millisecond)
	}
}

func (h *holder) stop() {
	h.cancel()
	h.wg.Wait()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// hold keeps one connection until the server ends it.
func (h *holder) hold(ctx context.Context) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", h.addr)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	h.open.Add(1)
	defer h.open.Add(-1)
	if _, err := io.WriteString(conn, h.begin); err != nil {
		return
	}
	ended := make(chan struct{})
	h.wg.Go(func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, conn) // until it is closed
	})
	for {
		select {
		case <-ended:
			return
		case <-time.After(time.Second):
			if _, err := io.WriteString(conn, h.more); err != nil {
				return
			}
		}
	}
}

// stream keeps one stream of HTTP/2 until the server ends it.
func (h *holder) stream(ctx context.Context, tr *http.Transport) {
	body, in := io.Pipe()
	defer in.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+h.addr+h.path, body)
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if strings.HasPrefix(h.path, "/grebe.") {
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("TE", "trailers")
	}
	h.open.Add(1)
	defer h.open.Add(-1)
	resp, err := tr.RoundTrip(req)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}
