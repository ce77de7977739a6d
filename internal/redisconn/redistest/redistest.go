// Package redistest has a server for tests that answers like Redis when a client connects, and then as a test says.
package redistest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Malformed are replies that no client should see the end of.
var Malformed = []string{
	"*-5\r\n", "$-2\r\n", "$99999999999999999\r\n", "*2147483647\r\n", "$99999999999999999999999999\r\n",
	"*9223372036854775807\r\n",
	"%4611686018427387905\r\n", "%-1\r\n", "~-1\r\n", ">-1\r\n", ">0\r\n", ">1\r\n", "$\r\n", "*\n", "\r\n", "?\r\n",
	"$?\r\n", "*?\r\n", "|1\r\n",
	"#true\r\n", "#\r\n", "_x\r\n", "=3\r\ntxt\r\n", strings.Repeat("*1\r\n", 100), strings.Repeat("*1000000\r\n", 3),
	">2\r\n$9\r\nsubscribe\r\n",
	">2\r\n$10\r\nunsubscrib\r\n", ">2\r\n+invalidate\r\n", "+" + strings.Repeat("x", 64<<10+1) + "\r\n", ".\r\n",
}

// Fake answers what a client asks when it connects, and all else with a text. It ends with the test.
type Fake struct {
	net.Listener
	Ended chan struct{} // has a place for every connection that ended

	mu    sync.Mutex
	reply string
	conns sync.WaitGroup
	open  map[net.Conn]bool
}

// Reply sets the text.
func (f *Fake) Reply(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reply = text
}

// Open returns the number of connections.
func (f *Fake) Open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.open)
}

// New starts a Fake.
func New(t *testing.T) *Fake {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &Fake{Listener: ln, open: map[net.Conn]bool{}, Ended: make(chan struct{}, 1000)}
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

func (f *Fake) serve(conn net.Conn) {
	defer func() {
		conn.Close()
		f.mu.Lock()
		delete(f.open, conn)
		f.mu.Unlock()
		f.Ended <- struct{}{}
	}()
	r := bufio.NewReader(conn)
	for {
		words, err := command(r)
		if err != nil {
			return
		}
		var answer string
		switch strings.ToUpper(words[0]) {
		case "HELLO":
			answer = "%2\r\n$7\r\nversion\r\n$5\r\n7.4.0\r\n$5\r\nproto\r\n:3\r\n"
		case "CLUSTER":
			answer = "-ERR This instance has cluster support disabled\r\n"
		case "PING":
			answer = "+PONG\r\n"
		case "CLIENT", "AUTH", "SELECT", "READONLY":
			answer = "+OK\r\n"
		default:
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
