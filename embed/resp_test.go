package embed

import (
	"context"
	"strings"
	"testing"
	"time"

	"grebe/internal/redisconn/redistest"
)

// A server that answers with malformed replies, or with more than it was asked for, costs rows and connections. It used
// to end the process, in goroutines of the client.
func TestMalformedRepliesOfRedis(t *testing.T) {
	f := redistest.New(t)
	const good = "*1\r\n$4\r\n\x00\x00\x80\x3f\r\n"
	s, err := NewRedis(RedisConfig{Addresses: []string{f.Addr().String()}, Prefix: "p", RowBytes: 4,
		Pause: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Watch(func([]uint64) {})
	gather := func(reply string) (bool, error) {
		f.Reply(reply)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		found := []bool{false}
		err := s.Gather(ctx, []uint64{1}, make([]byte, 4), found)
		return found[0], err
	}
	answers := append([]string{good + "+OK\r\n", good + good, good + ">2\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n"},
		redistest.Malformed...)
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
	f := redistest.New(t)
	f.Reply("*1\r\n$-1\r\n")
	s, err := NewRedis(RedisConfig{Addresses: []string{f.Addr().String()}, Prefix: "p", RowBytes: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Gather(t.Context(), []uint64{1}, make([]byte, 4), []bool{false}); err != nil {
		t.Fatal(err)
	}
	n := f.Open()
	if n == 0 {
		t.Fatal("there is no connection")
	}
	for len(f.Ended) > 0 { // those that the client tried first
		<-f.Ended
	}
	s.Watch(func([]uint64) {})
	for range n {
		select {
		case <-f.Ended:
		case <-time.After(20 * time.Second):
			t.Fatal("a connection that nobody uses stays open")
		}
	}
}
