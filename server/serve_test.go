package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/engine"
)

// serving is a world on real listeners.
type serving struct {
	*world
	http, grpc, admin net.Listener
	stop              func() error // ends Serve and returns its error
}

func listening(t testing.TB, w *world) *serving {
	t.Helper()
	listen := func() net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return ln
	}
	s := &serving{world: w, http: listen(), grpc: listen(), admin: listen()}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Serve(ctx, Listeners{HTTP: s.http, GRPC: s.grpc, Admin: s.admin}) }()
	stopped := false
	s.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *serving) url(path string) string { return "http://" + s.http.Addr().String() + path }

// client is an HTTP client whose connections end with the test.
func client(t testing.TB) *http.Client {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func TestServeFinishesWhatIsUnderWay(t *testing.T) {
	w := newWorld(t)
	inside, release := make(chan struct{}), make(chan struct{})
	w.runner.Set(func(context.Context, *engine.Job) error {
		close(inside)
		<-release
		return nil
	})
	s := listening(t, w)
	c := client(t)
	type answer struct {
		status int
		err    error
	}
	got := make(chan answer, 1)
	go func() {
		resp, err := c.Post(s.url("/v1/rank"), "application/json", strings.NewReader(goodRank))
		if err != nil {
			got <- answer{err: err}
			return
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		got <- answer{resp.StatusCode, err}
	}()
	<-inside
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	for w.state.Load() != draining {
		runtime.Gosched()
	}
	close(release)
	if a := <-got; a.err != nil || a.status != 200 {
		t.Errorf("the request under way: %+v", a)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := net.DialTimeout("tcp", s.http.Addr().String(), time.Second); err == nil {
		t.Error("still listening")
	}
	wantError(t, w.ask("GET", "/v2/health/ready", ""), 503, "unavailable", "")
}

// A connection without a request, as browsers open in advance, does not delay the end.
func TestServeDoesNotWaitForSilentConnections(t *testing.T) {
	s := listening(t, newWorld(t))
	for _, ln := range []net.Listener{s.http, s.admin, s.grpc} {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if ln == s.grpc { // the server begins
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	resp, err := client(t).Get(s.url("/v2/health/live")) // the server has accepted the connection before it
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	began := time.Now()
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 3*time.Second { // net/http alone: 5 s, gRPC alone: ShutdownTimeout
		t.Errorf("stopping took %v", took)
	}
}

func TestServeCutsWhatDoesNotFinish(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.ShutdownTimeout = 20 * time.Millisecond })
	inside := make(chan struct{})
	var ended atomic.Bool
	w.runner.Set(func(ctx context.Context, _ *engine.Job) error {
		close(inside)
		<-ctx.Done() // ends because the server closes the connection, long before the deadline
		time.Sleep(20 * time.Millisecond)
		ended.Store(true)
		return ctx.Err()
	})
	s := listening(t, w)
	c := client(t)
	failed := make(chan error, 1)
	go func() {
		resp, err := c.Post(s.url("/v1/rank"), "application/json", strings.NewReader(goodRank))
		if err == nil {
			resp.Body.Close()
		}
		failed <- err
	}()
	<-inside
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if !ended.Load() || w.handlers.Load() != 0 {
		t.Error("a handler outlives the server")
	}
	if err := <-failed; err == nil {
		t.Error("the request was answered")
	}
}

// The error of a request that the server cut off does not say that the client went away.
func TestRequestsThatAreCutOffAreTold(t *testing.T) {
	w := newWorld(t)
	w.runner.Set(func(context.Context, *engine.Job) error { return context.Canceled })
	wantError(t, w.ask("POST", "/v1/rank", goodRank), 499, "canceled", "")
	w.cutOff()
	wantError(t, w.ask("POST", "/v1/rank", goodRank), 503, "unavailable", "")
}

// Health watchers do not delay shutdown: they get the new status, and their streams end.
func TestServeDoesNotWaitForWatchers(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.ShutdownTimeout = time.Hour })
	s := listening(t, w)
	var watchers []grpc_health_v1.Health_WatchClient
	for _, ln := range []net.Listener{s.grpc, s.http} {
		stream, err := grpc_health_v1.NewHealthClient(dial(t, ln.Addr().String())).Watch(context.Background(),
			&grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := stream.Recv(); err != nil || m.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Fatalf("%v %v", m, err)
		}
		watchers = append(watchers, stream)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	for _, stream := range watchers {
		for {
			if _, err := stream.Recv(); err != nil {
				break
			}
		}
	}
}

// The bytes of gRPC messages count with those of all other requests, on both ports.
func TestBytesUnderWayAreBoundedForGRPC(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.MaxBody, c.MaxBuffered = 1<<20, 1<<20 })
	s := listening(t, w)
	req := &grebev1.RankRequest{Model: "id", User: &grebev1.User{Tokens: []int32{1, 2}},
		Candidates: []*grebev1.Item{{Tokens: []int32{3}, Identifier: new(int32)}}}
	for _, ln := range []net.Listener{s.grpc, s.http} {
		c := grebev1.NewGrebeClient(dial(t, ln.Addr().String()))
		if _, err := c.Rank(t.Context(), req); err != nil {
			t.Fatalf("with nothing under way: %v", err)
		}
		free, err := w.hold(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Rank(t.Context(), req); status.Code(err) == codes.OK {
			t.Error("a call is taken while all bytes are in use")
		}
		free()
		if _, err := c.Rank(t.Context(), req); err != nil {
			t.Errorf("with nothing under way again: %v", err)
		}
	}
	w.reading.Add(w.mostReading())
	if _, err := grebev1.NewGrebeClient(dial(t, s.grpc.Addr().String())).Rank(t.Context(),
		req); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("while as many messages are read as may be: %v", err)
	}
	w.reading.Add(-w.mostReading())
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if w.bodies.Load() != 0 || w.reading.Load() != 0 {
		t.Errorf("%d bytes and %d messages are left on the books", w.bodies.Load(), w.reading.Load())
	}
}

// A call whose message arrives slowly reserves the largest size of a message. If too many are slow, the last ones
// end. The others are answered when their messages are complete.
func TestSlowMessagesOfGRPCAreBounded(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.MaxBody, c.MaxBuffered = 1<<20, 3<<20 })
	w.patience = time.Millisecond
	s := listening(t, w)
	message, err := proto.Marshal(&grebev1.RankRequest{
		Model: "id", User: &grebev1.User{Tokens: []int32{1, 2}},
		Candidates: []*grebev1.Item{{Tokens: []int32{3}, Identifier: new(int32)}}})
	if err != nil {
		t.Fatal(err)
	}
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: &protocols}}
	defer client.CloseIdleConnections()
	const calls = 3
	rests, answers := make([]*io.PipeWriter, calls), make(chan string)
	call := func(i int) {
		body, rest := io.Pipe()
		rests[i] = rest
		req, err := http.NewRequest(http.MethodPost, "http://"+s.grpc.Addr().String()+grebev1.Grebe_Rank_FullMethodName, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("TE", "trailers")
		go func() {
			resp, err := client.Do(req)
			if err != nil {
				answers <- err.Error()
				return
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
			answers <- resp.Header.Get("Grpc-Status") + resp.Trailer.Get("Grpc-Status")
		}()
	}
	slow := func(n int64) {
		for w.slow.Load() != n {
			time.Sleep(time.Millisecond)
		}
	}
	for i := range calls {
		call(i)
		if _, err := rests[i].Write(frame[:9]); err != nil {
			t.Fatal(err)
		}
		slow(int64(i + 1)) // as many as fit
	}
	rests = append(rests, nil)
	call(calls)
	if got := <-answers; got == "0" {
		t.Error("one more slow message than fits is answered")
	}
	slow(calls)
	for _, rest := range rests[:calls] {
		if _, err := rest.Write(frame[9:]); err != nil {
			t.Error(err)
		}
		rest.Close()
		if got := <-answers; got != "0" {
			t.Errorf("a slow message that came is answered with %q", got)
		}
	}
	rests[calls].Close()
	slow(0)
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if w.reading.Load() != 0 {
		t.Errorf("%d messages are left on the books", w.reading.Load())
	}
}

func TestServeReportsABrokenListener(t *testing.T) {
	w := newWorld(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := w.Serve(context.Background(), Listeners{HTTP: ln}); err == nil || !errors.Is(err, net.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

func TestClientGone(t *testing.T) {
	w := newWorld(t)
	inside, gone := make(chan struct{}), make(chan error, 1)
	w.runner.Set(func(ctx context.Context, _ *engine.Job) error {
		close(inside)
		<-ctx.Done()
		gone <- ctx.Err()
		return ctx.Err()
	})
	s := listening(t, w)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-inside
		cancel()
	}()
	req, err := http.NewRequestWithContext(ctx, "POST", s.url("/v1/rank"), strings.NewReader(goodRank))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := client(t).Do(req); err == nil {
		resp.Body.Close()
		t.Error("a canceled request was answered")
	}
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the job's context ended with %v", err)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if m := w.ask("GET", "/metrics", "").Body.String(); !strings.Contains(m,
		`grebe_requests_total{code="499",op="rank"} 1`) {
		t.Error("the request was not counted as 499")
	}
}

// malformedSeeds are the requests to mutate: method, path, body.
var malformedSeeds = [][3]string{
	{
		"POST", "/v1/rank",
		`{"model":"id","user":{"id":"u1"},"candidates":[{"id":"i1"},{"id":"i2"}],"top_k":1,"prefix":"auto",` +
			`"deadline_ms":2000,"request_id":"x"}`},
	{
		"POST", "/v1/rank",
		`{"model":"pw","user":{"tokens":[1,2]},"candidates":[{"tokens":[3],"identifier":5},{"text":"é",` +
			`"attributes":{"a":["b"]}}]}`},
	{
		"POST", "/v1/score",
		`{"model":"id","query":"q","items":["a",[1,2]],"label_token_ids":[1,2],"apply_softmax":true,"item_first":false}`},
	{"POST", "/v1/score", `{"model":"id","query":[1],"items":[[2]],"label_token_ids":[3]}`},
	{"POST", "/v1/rerank", `{"model":"pw","query":"q","documents":["a",{"text":"b"}],"top_n":1,"return_documents":true}`},
	{"PUT", "/v1/items/x", `{"id":"x","text":"t","tokens":[1],"identifier":3,"codes":[1,2],"attributes":{"c":["d"]}}`},
	{
		"PUT", "/v1/users/y",
		`{"id":"y","history":["i1"],"events":[{"item":"i1","time":1,"action":2,"features":{"f":1.5}}]}`},
	{"GET", "/v1/models", ""},
	{"GET", "/v1/catalog", ""},
	{"DELETE", "/v1/items/none", ""},
	{"GET", "/metrics", ""},
	{"GET", "/", ""},
}

// mutate makes some random changes to b.
func mutate(rng *rand.Rand, b []byte, changes int) []byte {
	pieces := []string{`"`, `{`, `}`, `[`, `]`, `,`, `:`, `null`, `-1`, `1e309`, `99999999999`, `\ud800`, "\xff\xfe",
		"\x00", `"id":`, `[[[[[[[[`, "é", "\r\n", " "}
	b = append([]byte(nil), b...)
	for range changes {
		at := rng.IntN(len(b) + 1)
		switch rng.IntN(5) {
		case 0:
			b = append(b[:at:at], b[min(len(b), at+1+rng.IntN(8)):]...)
		case 1:
			b = append(b[:at:at], append([]byte(pieces[rng.IntN(len(pieces))]), b[at:]...)...)
		case 2:
			if at < len(b) {
				b[at] = byte(rng.IntN(256))
			}
		case 3:
			b = b[:at]
		default:
			end := min(len(b), at+rng.IntN(20))
			b = append(b[:end:end], append(bytes.Clone(b[at:end]), b[end:]...)...)
		}
	}
	return b
}

// malformed returns the bytes of a malformed request; most are HTTP with an error. A whole one ends where its length
// says.
func malformed(rng *rand.Rand) (raw []byte, whole bool) {
	seed := malformedSeeds[rng.IntN(len(malformedSeeds))]
	method, path, body := seed[0], seed[1], []byte(seed[2])
	header := "Content-Type: application/json\r\n"
	length := -1
	switch rng.IntN(10) {
	case 0: // noise
		noise := make([]byte, rng.IntN(300))
		for i := range noise {
			noise[i] = byte(rng.IntN(256))
		}
		return noise, false
	case 1: // a request damaged anywhere
		raw := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
		return mutate(rng, []byte(raw), 1+rng.IntN(6)), false
	case 2:
		path = string(mutate(rng, []byte(path), 1+rng.IntN(3)))
	case 3:
		method = []string{"GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "X" + method}[rng.IntN(9)]
		whole = true
	case 4:
		header = []string{"Content-Type: text/html\r\n", "Content-Type: ;;\r\n", "Content-Encoding: gzip\r\n",
			"Transfer-Encoding: nonsense\r\n",
			"Expect: 200-maybe\r\n", "Content-Length: 5\r\n", "X: " + strings.Repeat("y", 100000) + "\r\n",
			"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n",
			"Transfer-Encoding: chunked\r\n", ": \r\n", "a b: c\r\n"}[rng.IntN(11)]
	case 5:
		length = rng.IntN(2 * (len(body) + 1)) // not the body's
	default:
		body = mutate(rng, body, 1+rng.IntN(4))
		whole = true
	}
	if length < 0 {
		length = len(body)
	}
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s", method,
		path, header, length, body), whole
}

// Ten thousand malformed requests to a real listener never make the server fail, and it answers a good request as
// before.
func TestMalformedRequests(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.Hosts = []string{"x"} }) // as the requests say
	s := listening(t, w)
	want := w.ask("POST", "/v1/rank", goodRank).Body.Bytes()
	const n, workers = 10000, 8
	statuses := make(chan int, n)
	for k := range workers {
		go func() {
			rng := rand.New(rand.NewPCG(7, uint64(k)))
			for range n / workers {
				raw, whole := malformed(rng)
				statuses <- send(s.http.Addr().String(), raw, whole)
			}
		}()
	}
	count := map[int]int{}
	for range n {
		count[<-statuses]++
	}
	t.Logf("answers by status, 0 for none: %v", count)
	for status, times := range count {
		switch {
		case status < 500, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		case status == http.StatusNotImplemented, status == http.StatusHTTPVersionNotSupported:
			// net/http's answers to an unknown transfer coding and an unknown HTTP version, as RFC 9112 wants them
		default:
			t.Errorf("%d answers with status %d", times, status)
		}
	}
	for _, status := range []int{200, 400, 404, 405, 415} {
		if count[status] == 0 {
			t.Errorf("no answer with status %d: the requests are not as they should be", status)
		}
	}
	if m := w.ask("GET", "/metrics", "").Body.String(); !strings.Contains(m, "grebe_panics_total 0\n") {
		t.Error("a handler panicked")
	}
	resp, err := client(t).Post(s.url("/v1/rank"), "application/json", strings.NewReader(goodRank))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || results(got) != results(want) {
		t.Errorf("after the storm: %d %s %v, want %s", resp.StatusCode, got, err, want)
	}
}

// results returns the part of a response that is the same every time.
func results(body []byte) string {
	_, rest, _ := strings.Cut(string(body), `"results":`)
	rest, _, _ = strings.Cut(rest, `"timing_ms"`)
	return rest
}

// send writes raw bytes to a new connection and returns the status of the first final answer, or 0. After an
// incomplete request it closes the connection, because the server would wait for more.
func send(addr string, raw []byte, whole bool) int {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 0
	}
	defer conn.Close()
	if _, err := conn.Write(raw); err != nil {
		return 0
	}
	if !whole {
		conn.(*net.TCPConn).CloseWrite()
	}
	r := bufio.NewReader(conn)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0
		}
		rest, ok := strings.CutPrefix(line, "HTTP/1.")
		if !ok || len(rest) < 5 {
			continue
		}
		if status, err := strconv.Atoi(rest[2:5]); err == nil && status >= 200 {
			return status
		}
	}
}
