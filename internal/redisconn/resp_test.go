package redisconn

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"grebe/internal/redisconn/redistest"
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
	for _, text := range redistest.Malformed {
		for piece := 1; piece <= min(len(text), 30); piece++ {
			if n, good, err := scanned("+OK\r\n"+text, piece); n != 1 || good >= len("+OK\r\n"+text) || err == nil {
				t.Errorf("%.40q in pieces of %d: %d messages, %d bytes, %v", text, piece, n, good, err)
				break
			}
		}
	}
}

// What a client says is counted, however it is cut.
func TestAnswersAreNoMoreThanQuestions(t *testing.T) {
	here, there := net.Pipe()
	c := checkReplies(here)
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
