package embed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// scanned feeds a scanner pieces of so many bytes, and returns how many messages were whole and how many bytes were
// good.
func scanned(text string, piece int) (whole, good int, err error) {
	s := respScanner{mostBlob: 1 << 10, replies: true, whole: func() error { whole++; return nil }}
	for at := 0; at < len(text); at += piece {
		n, err := s.scan([]byte(text[at:min(at+piece, len(text))]))
		if good += n; err != nil {
			return whole, good, err
		}
	}
	return whole, good, nil
}

// Messages are followed whatever pieces they come in.
func TestScannerFollowsMessages(t *testing.T) {
	for text, want := range map[string]int{
		"+OK\r\n":                           1,
		"$3\r\na\nb\r\n*2\r\n$-1\r\n:7\r\n": 2,
		"*-1\r\n*0\r\n%1\r\n+a\r\n*1\r\n~2\r\n#t\r\n_\r\n":                              3,
		">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n:1\r\n":                            1,
		">2\r\n$10\r\ninvalidate\r\n_\r\n-ERR no\r\n!3\r\nERR\r\n=5\r\ntxt:a\r\n,1\r\n": 4,
	} {
		for piece := 1; piece <= len(text); piece++ {
			if n, good, err := scanned(text, piece); n != want || good != len(text) || err != nil {
				t.Errorf("%q in pieces of %d: %d messages, %d bytes, %v; want %d", text, piece, n, good, err, want)
			}
		}
	}
}

// Of a malformed message the client never sees the end.
func TestScannerStopsAtMalformedMessages(t *testing.T) {
	for _, text := range malformed {
		for piece := 1; piece <= min(len(text), 30); piece++ {
			if n, good, err := scanned("+OK\r\n"+text, piece); n != 1 || good >= len("+OK\r\n"+text) || err == nil {
				t.Errorf("%.40q in pieces of %d: %d messages, %d bytes, %v", text, piece, n, good, err)
				break
			}
		}
	}
}

var malformed = []string{
	"*-5\r\n", "$-2\r\n", "$99999999999999999\r\n", "*2147483647\r\n", "$99999999999999999999999999\r\n",
	"*9223372036854775807\r\n",
	"%4611686018427387905\r\n", "%-1\r\n", "~-1\r\n", ">-1\r\n", ">0\r\n", ">1\r\n", "$\r\n", "*\n", "\r\n", "?\r\n",
	"$?\r\n", "*?\r\n", "|1\r\n",
	"#true\r\n", "#\r\n", "_x\r\n", "=3\r\ntxt\r\n", strings.Repeat("*1\r\n", 100), strings.Repeat("*1000000\r\n", 3),
	">2\r\n$9\r\nsubscribe\r\n",
	">2\r\n$10\r\nunsubscrib\r\n", ">2\r\n+invalidate\r\n", "+" + strings.Repeat("x", mostReplyLine+1) + "\r\n", ".\r\n",
}

// fakeRedis answers what a client asks when it connects, and every MGET with a text.
type fakeRedis struct {
	net.Listener
	mu    sync.Mutex
	reply string
	conns sync.WaitGroup
	open  map[net.Conn]bool
	ended chan struct{} // has a place for every connection that ended
}

func newFakeRedis(t *testing.T) *fakeRedis {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeRedis{Listener: ln, open: map[net.Conn]bool{}, ended: make(chan struct{}, 1000)}
	f.conns.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.open[conn] = true
			f.mu.Unlock()
			f.conns.Go(func() { f.serve(conn) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		f.mu.Lock()
		for c := range f.open {
			c.Close()
		}
		f.mu.Unlock()
		f.conns.Wait()
	})
	return f
}

func (f *fakeRedis) serve(conn net.Conn) {
	defer func() {
		conn.Close()
		f.mu.Lock()
		delete(f.open, conn)
		f.mu.Unlock()
		f.ended <- struct{}{}
	}()
	r := bufio.NewReader(conn)
	for {
		words, err := command(r)
		if err != nil {
			return
		}
		answer := "+OK\r\n"
		switch strings.ToUpper(words[0]) {
		case "HELLO":
			answer = "%2\r\n$7\r\nversion\r\n$5\r\n7.4.0\r\n$5\r\nproto\r\n:3\r\n"
		case "CLUSTER":
			answer = "-ERR This instance has cluster support disabled\r\n"
		case "PING":
			answer = "+PONG\r\n"
		case "MGET":
			f.mu.Lock()
			answer = f.reply
			f.mu.Unlock()
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

func command(r *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	words := make([]string, 0, max(0, n))
	for range n {
		k, err := number()
		if err != nil {
			return nil, err
		}
		word := make([]byte, k+2)
		if _, err := io.ReadFull(r, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:k]))
	}
	if err == nil && len(words) == 0 {
		err = errors.New("no command")
	}
	return words, err
}

// A server that answers with malformed replies, or with more than it was asked for, costs rows and connections. It used
// to end the process, in goroutines of the client.
func TestMalformedRepliesOfRedis(t *testing.T) {
	f := newFakeRedis(t)
	const good = "*1\r\n$4\r\n\x00\x00\x80\x3f\r\n"
	s, err := NewRedis(RedisConfig{Addresses: []string{f.Addr().String()}, Prefix: "p", RowBytes: 4,
		Pause: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Watch(func([]uint64) {})
	gather := func(reply string) (bool, error) {
		f.mu.Lock()
		f.reply = reply
		f.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		found := []bool{false}
		err := s.Gather(ctx, []uint64{1}, make([]byte, 4), found)
		return found[0], err
	}
	answers := append([]string{good + "+OK\r\n", good + good, good + ">2\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n"}, malformed...)
	for _, reply := range answers {
		switch found, err := gather(reply); {
		case err == nil && strings.HasPrefix(reply, good):
		case err == nil || found:
			t.Errorf("%.40q: found %v, %v", reply, found, err)
		}
		// The next connection may still be that of the reply before.
		var found bool
		for range 100 {
			if found, err = gather(good); err == nil {
				break
			}
		}
		if !found || err != nil {
			t.Fatalf("after %.40q: found %v, %v", reply, found, err)
		}
	}
}

// A connection that was made before anybody watched is closed when somebody does: it would tell of nothing, and stay
// open.
func TestWatchClosesTheConnectionBefore(t *testing.T) {
	f := newFakeRedis(t)
	f.reply = "*1\r\n$-1\r\n"
	s, err := NewRedis(RedisConfig{Addresses: []string{f.Addr().String()}, Prefix: "p", RowBytes: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Gather(t.Context(), []uint64{1}, make([]byte, 4), []bool{false}); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	n := len(f.open)
	f.mu.Unlock()
	if n == 0 {
		t.Fatal("there is no connection")
	}
	for len(f.ended) > 0 { // those that the client tried first
		<-f.ended
	}
	s.Watch(func([]uint64) {})
	for range n {
		select {
		case <-f.ended:
		case <-time.After(20 * time.Second):
			t.Fatal("a connection that nobody uses stays open")
		}
	}
}

// What a client says is counted, however it is cut.
func TestAnswersAreNoMoreThanQuestions(t *testing.T) {
	here, there := net.Pipe()
	c := checkReplies(here, 4)
	said := make(chan error, 1)
	go func() {
		_, err := io.CopyN(io.Discard, there, 2*int64(len("*1\r\n$4\r\nPING\r\n")))
		if err == nil {
			_, err = io.WriteString(there, "+a\r\n+b\r\n+c\r\n")
		}
		said <- err
	}()
	for _, part := range []string{"*1\r\n$4\r\nPI", "NG\r\n*1\r", "\n$4\r\nPING\r\n"} {
		if _, err := io.WriteString(c, part); err != nil {
			t.Fatal(err)
		}
	}
	got, err := io.ReadAll(c)
	if string(got) != "+a\r\n+b\r\n" || err == nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := errors.Join(c.Close(), <-said); err != nil {
		t.Error(fmt.Errorf("the server: %w", err))
	}
}
