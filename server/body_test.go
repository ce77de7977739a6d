package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"grebe/serve"
)

// pipes is a listener whose connections are in memory, so that their deadlines follow a fake clock.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// onPipes serves a world in memory, in a bubble of synctest. end stops it.
func onPipes(t *testing.T, change ...func(*setup)) (w *world, ln *pipes, end func()) {
	w, ln = newWorld(t, change...), newPipes()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Serve(ctx, Listeners{HTTP: ln}) }()
	return w, ln, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// slowClient sends the beginning of a request, then more from time to time, until the server cuts it off. It returns
// the first line of the answer, and when the connection ended.
func slowClient(t *testing.T, ln *pipes, begin, more string,
	every time.Duration) (answer func() (string, time.Duration)) {
	c, err := ln.dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	line, end := make(chan string, 1), make(chan time.Duration, 1)
	stop := make(chan struct{})
	go func() {
		r := bufio.NewReader(c)
		text, _ := r.ReadString('\n')
		_, _ = io.Copy(io.Discard, r)
		close(stop)
		line <- text
		end <- time.Since(start)
	}()
	go func() {
		defer c.Close()
		if _, err := io.WriteString(c, begin); err != nil || more == "" {
			<-stop
			return
		}
		for {
			select {
			case <-stop:
				return
			case <-time.After(every):
				if _, err := io.WriteString(c, more); err != nil {
					<-stop
					return
				}
			}
		}
	}()
	return func() (string, time.Duration) { return <-line, <-end }
}

const slowPost = "POST /v1/rank HTTP/1.1\r\nHost: localhost\r\n"

// slowKinds are ways to keep a server waiting, with the expected answers.
var slowKinds = []struct{ name, begin, more, answer string }{
	{"declared length, nothing sent", slowPost + "Content-Length: 1000000\r\n\r\n", "", "408"},
	{"chunked, nothing sent", slowPost + "Transfer-Encoding: chunked\r\n\r\n", "", "408"},
	{"chunked, slowly", slowPost + "Transfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n", "408"},
	{"declared length, slowly", slowPost + "Content-Length: 1000000\r\n\r\n", " ", "408"},
	{"a batch, slowly", "POST /v1/items:batch HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
		"1\r\n\n\r\n", "408"},
	{"half a header", "POST /v1/rank HTTP/1.1\r\nHost: loc", "", ""},
	{"nothing", "", "", ""},
}

// Clients that send nothing or little take no memory and no slots, and are cut off.
func TestSlowClientsCostOthersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ln, end := onPipes(t, func(c *setup) { c.MaxInFlight = 16 })
		defer end()
		tr := &http.Transport{DialContext: ln.dial}
		defer tr.CloseIdleConnections()
		answers := map[string][]func() (string, time.Duration){}
		for _, k := range slowKinds {
			for range 150 {
				answers[k.name] = append(answers[k.name], slowClient(t, ln, k.begin, k.more, time.Second))
			}
		}
		ask := func() {
			t.Helper()
			start := time.Now()
			req, _ := http.NewRequest("POST", "http://localhost/v1/rank", strings.NewReader(goodRank))
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if took := time.Since(start); resp.StatusCode != 200 || took > 0 {
				t.Errorf("beside slow clients: %d after %v, want 200 at once", resp.StatusCode, took)
			}
		}
		synctest.Wait()
		ask()
		if held := w.bodies.Load(); held > 1<<20 {
			t.Errorf("%d bytes are held for clients that sent nearly nothing", held)
		}
		time.Sleep(9 * time.Second)
		ask()
		for _, k := range slowKinds {
			times := map[time.Duration]bool{}
			for _, answer := range answers[k.name] {
				line, took := answer()
				times[took] = true
				if !strings.Contains(line, k.answer) || k.name != "nothing" && took > 12*time.Second {
					t.Fatalf("%s: %q after %v, want %s within 12 s", k.name, line, took, k.answer)
				}
			}
			if k.answer == "408" && len(times) < 30 { // clients that came together are not cut off at once
				t.Errorf("%s: 150 clients are cut off at %d times", k.name, len(times))
			}
		}
		if held := w.bodies.Load(); held != 0 || len(w.slots) != 0 || len(w.intake.held) != 0 {
			t.Errorf("%d bytes, %d places and %d owners are left", held, len(w.slots), len(w.intake.held))
		}
	})
}

// A declared length takes no memory: it is allocated as bytes arrive.
func TestADeclaredLengthTakesNoMemory(t *testing.T) {
	w := newWorld(t)
	const bodies = 200
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range bodies {
		r := httptest.NewRequest("POST", "/v1/rank", iotest.ErrReader(io.ErrUnexpectedEOF))
		r.ContentLength = 16_000_000
		if err := w.receive(httptest.NewRecorder(), r); err == nil {
			t.Fatal("half a body was taken")
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / bodies; each > 16<<10 {
		t.Errorf("a body that does not come takes %d bytes", each)
	}
}

// Idle streams of one HTTP/2 connection take nothing from others, and end.
func TestSlowStreamsCostOthersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ln, end := onPipes(t, func(c *setup) { c.MaxInFlight = 16 })
		defer end()
		tr := &http.Transport{DialContext: ln.dial, Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(true)
		defer tr.CloseIdleConnections()
		statuses := make(chan int, 16)
		for i := range 15 {
			go func() {
				body, w := io.Pipe()
				defer w.Close()
				path := "/v1/rank"
				if i%2 == 1 {
					path = "/v1/items:batch"
				}
				req, _ := http.NewRequest("POST", "http://localhost"+path, body)
				resp, err := tr.RoundTrip(req)
				if err != nil {
					statuses <- 0
					return
				}
				resp.Body.Close()
				statuses <- resp.StatusCode
			}()
		}
		synctest.Wait()
		other := &http.Transport{DialContext: ln.dial}
		defer other.CloseIdleConnections()
		req, _ := http.NewRequest("POST", "http://localhost/v1/rank", strings.NewReader(goodRank))
		resp, err := other.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("beside idle streams: %d", resp.StatusCode)
		}
		start := time.Now()
		for range 15 {
			if got := <-statuses; got != http.StatusRequestTimeout {
				t.Errorf("an idle stream: %d, want 408", got)
			}
		}
		if took := time.Since(start); took > 11*time.Second {
			t.Errorf("idle streams end after %v", took)
		}
	})
}

// A long batch at a steady pace is not cut off. The server's own time does not count.
func TestSteadyBatchesMayTakeLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ln, end := onPipes(t)
		defer end()
		tr := &http.Transport{DialContext: ln.dial}
		defer tr.CloseIdleConnections()
		body, in := io.Pipe()
		go func() {
			for i := range 600 {
				fmt.Fprintf(in, "{\"id\":\"n%d\",\"text\":%q}\n", i, strings.Repeat("x", 5<<10))
				time.Sleep(time.Second)
			}
			in.Close()
		}()
		req, _ := http.NewRequest("POST", "http://localhost/v1/items:batch", body)
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 200 || !strings.Contains(string(text), `"created":600`) {
			t.Errorf("%d %.200s", resp.StatusCode, text)
		}
		if held := w.bodies.Load(); held != 0 {
			t.Errorf("%d bytes are left", held)
		}
	})
}

// The bytes of large bodies are bounded per connection and per key, and leave room for small ones.
func TestLargeBodiesAreBoundedByConnectionAndKey(t *testing.T) {
	const mib = 1 << 20
	w := newWorld(t, func(c *setup) { c.MaxBody, c.MaxBuffered = 16*mib, 128*mib })
	read := func(conn, key string, n int) (*meteredBody, error) {
		b := &meteredBody{ReadCloser: io.NopCloser(bytes.NewReader(make([]byte, n))), s: w.Server, conn: conn, key: key}
		_, err := io.Copy(io.Discard, b)
		return b, err
	}
	var all []*meteredBody
	fill := func(conn, key string, n int) (bodies int) {
		for {
			b, err := read(conn, key, n)
			if err != nil {
				var own *serve.Error
				if !errors.As(err, &own) || codeOf(own) != serve.Exhausted {
					t.Errorf("refused with %v", err)
				}
				b.free()
				return bodies
			}
			all, bodies = append(all, b), bodies+1
		}
	}
	if got := fill("a", "", 4*mib); got != 8 {
		t.Errorf("one connection holds %d bodies of 4 MiB, want 8 of the 32 that fit", got)
	}
	if got := fill("b", "k", 4*mib) + fill("c", "k", 4*mib) + fill("d", "k", 4*mib); got != 16 {
		t.Errorf("one key holds %d bodies of 4 MiB on three connections, want 16", got)
	}
	if got := fill("e", "l", 4*mib); got != 4 {
		t.Errorf("%d more bodies of 4 MiB, want 4: an eighth is left", got)
	}
	if got := fill("f", "k", 32<<10); got != 512 {
		t.Errorf("%d small bodies, want all 512 that fit into the eighth", got)
	}
	for _, b := range all {
		b.free()
	}
	if w.bodies.Load() != 0 || len(w.intake.held) != 0 {
		t.Errorf("%d bytes are left, of %v", w.bodies.Load(), w.intake.held)
	}
}

// Idle batches do not block other imports.
func TestIdleBatchesDoNotKeepOthersFromImporting(t *testing.T) {
	r := newRecommender(t)
	s := listening(t, r.world)
	var done sync.WaitGroup
	var bodies []*io.PipeWriter
	c := client(t)
	for range 100 {
		body, in := io.Pipe()
		bodies = append(bodies, in)
		done.Go(func() {
			resp, err := c.Post(s.url("/v1/items:batch"), "application/x-ndjson", body)
			if err == nil {
				resp.Body.Close()
			}
		})
		if _, err := io.WriteString(in, "\n"); err != nil { // it is in flight
			t.Fatal(err)
		}
	}
	resp, err := c.Post(s.url("/v1/items:batch"), "application/x-ndjson", strings.NewReader(`{"id": "x1", "text": "t"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("an import beside 100 idle ones: %d", resp.StatusCode)
	}
	for _, in := range bodies {
		in.Close()
	}
	done.Wait()
}
