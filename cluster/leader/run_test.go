package leader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grebe/cluster/coord"
	"grebe/cluster/coord/coordtest"
)

// led is one call of lead.
type led struct {
	self string
	term *Term
	at   time.Time
}

// candidate takes part in an election until stop. Its leads go to a channel.
func candidate(c coord.Coordinator, self string, leads chan<- led) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = Run(ctx, c, Options{Key: "leader/x", Self: self, TTL: ttl}, func(ctx context.Context, t *Term) error {
			leads <- led{self, t, time.Now()}
			<-ctx.Done()
			return nil
		})
	})
	return func() { cancel(); wg.Wait() }
}

func TestResignsAndDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := coordtest.NewServer()
		defer s.Close()
		leads := make(chan led, 100)
		var stops []func()
		clients := map[string]*coordtest.Client{}
		for i := range 3 {
			c, self := s.Open(), fmt.Sprint("p", i)
			clients[self] = c
			stops = append(stops, candidate(c, self, leads))
		}
		first := <-leads
		time.Sleep(time.Minute)
		if len(leads) != 0 || !first.term.Leading() || first.term.Number != 1 {
			t.Fatalf("after a quiet minute: %d more leaders, term %d leads: %v", len(leads), first.term.Number,
				first.term.Leading())
		}

		// Cut off: it stops by itself before another takes over, a ttl and a poll later at most.
		clients[first.self].Stall()
		cut := time.Now()
		for first.term.Leading() {
			time.Sleep(time.Millisecond)
		}
		ended := time.Now()
		second := <-leads
		if second.at.Before(ended) || second.at.Sub(cut) > ttl+ttl/3+time.Second || second.term.Number != 2 {
			t.Errorf("cut off at 0, ended at %v, term %d begins at %v", ended.Sub(cut), second.term.Number, second.at.Sub(cut))
		}
		clients[first.self].Resume()
		time.Sleep(time.Minute)
		if len(leads) != 0 || !second.term.Leading() {
			t.Error("the old leader's return ended the new one's term")
		}

		// A process that stops resigns: the next leader needs no ttl.
		var i int
		_, _ = fmt.Sscanf(second.self, "p%d", &i)
		stops[i]()
		resigned := time.Now()
		third := <-leads
		if third.at.Sub(resigned) > ttl/2 || third.term.Number != 3 {
			t.Errorf("term %d begins %v after the leader resigned", third.term.Number, third.at.Sub(resigned))
		}
		for _, stop := range stops {
			stop()
		}
	})
}

// A coordinator that is stopped for a minute: the leader stops by its clock, and one leads again in a new term soon
// after.
func TestCoordinatorStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := coordtest.NewServer()
		defer s.Close()
		leads := make(chan led, 100)
		for i := range 2 {
			defer candidate(s.Open(), fmt.Sprint("p", i), leads)()
		}
		first := <-leads
		s.Stop()
		time.Sleep(ttl)
		if first.term.Leading() {
			t.Error("it leads without a coordinator")
		}
		time.Sleep(time.Minute)
		s.Resume()
		back := time.Now()
		if next := <-leads; next.at.Sub(back) > 2*time.Second || next.term.Number < 2 {
			t.Errorf("term %d begins %v after the coordinator is back", next.term.Number, next.at.Sub(back))
		}
	})
}

// An orderly stop logs no warning. A term that ends for another reason is logged with that reason.
func TestLogsEndOfTerm(t *testing.T) {
	for _, c := range []struct {
		name, want string
		end        func(s *coordtest.Server, stop func()) error // while it leads
	}{
		{"stop", "", func(_ *coordtest.Server, stop func()) error { stop(); return context.Canceled }},
		{"job", "error=broken", func(*coordtest.Server, func()) error { return errors.New("broken") }},
		{"coordinator", "not renewed in time", func(s *coordtest.Server, _ func()) error { s.Stop(); return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := coordtest.NewServer()
				defer s.Close()
				var b bytes.Buffer
				log := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelWarn}))
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				first := true
				_ = Run(ctx, s.Open(), Options{Key: "leader/x", Self: "p", TTL: ttl, Log: log},
					func(ctx context.Context, _ *Term) error {
						if first {
							first = false
							if err := c.end(s, stop); err != nil {
								return err
							}
						}
						<-ctx.Done()
						return ctx.Err()
					})
				if got := b.String(); c.want == "" && got != "" || !strings.Contains(got, c.want) ||
					strings.Count(got, "no longer leading") > 1 {
					t.Errorf("logs %q, want %q", got, c.want)
				}
			})
		})
	}
}

// Someone deletes the election's key. The objects still have their terms: a new leader finds them and takes a higher
// one.
func TestElectionKeyDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := coordtest.NewServer()
		defer s.Close()
		c := s.Open()
		if _, err := c.Swap(t.Context(), "map", Fenced{41, []byte("x")}.Encode(), 0, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var refused, got int64
		_ = Run(ctx, c, Options{Key: "leader/x", Self: "p", TTL: ttl}, func(ctx context.Context, term *Term) error {
			o, err := term.Claim(ctx, "map")
			if errors.Is(err, ErrFenced) {
				refused++
				return err
			}
			if err != nil {
				t.Error(err)
				return err
			}
			if got = term.Number; string(o.Data()) != "x" {
				t.Errorf("claimed %q", o.Data())
			}
			<-ctx.Done()
			return nil
		})
		if refused != 1 || got != 42 {
			t.Errorf("refused %d times, then led in term %d, want 42", refused, got)
		}
	})
}

func TestReaderIgnoresLowerTerms(t *testing.T) {
	var r Reader
	for i, c := range []struct {
		key  string
		term int64
		ok   bool
	}{{"a", 3, true}, {"a", 3, true}, {"a", 2, false}, {"b", 1, true}, {"a", 4, true}, {"a", 3, false}} {
		f, ok, err := r.Accept(coord.Entry{Key: c.key, Data: Fenced{c.term, []byte("x")}.Encode()})
		if err != nil || ok != c.ok || ok && f.Term != c.term {
			t.Errorf("step %d: %v, %v, %v", i, f, ok, err)
		}
	}
	if _, _, err := r.Accept(coord.Entry{Key: "a", Data: []byte("x")}); err == nil {
		t.Error("a value without a term is accepted")
	}
}

func TestWriteAfterTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := coordtest.NewServer()
		defer s.Close()
		c := s.Open()
		term := &Term{Number: 1, c: c, until: time.Now().Add(time.Second)}
		o, err := term.Claim(t.Context(), "map")
		if err != nil {
			t.Fatal(err)
		}
		// A write that is not answered: the next one finds out what became of it.
		c.Stall()
		if err := o.Write(t.Context(), []byte("lost")); !errors.Is(err, coord.ErrUnavailable) {
			t.Fatal(err)
		}
		c.Resume()
		term.extend(time.Now().Add(time.Second))
		if err := o.Write(t.Context(), []byte("a")); err != nil || string(o.Data()) != "a" {
			t.Fatalf("%v, %q", err, o.Data())
		}
		later := &Term{Number: 2, c: c, until: time.Now().Add(time.Hour)}
		if o, err := later.Claim(t.Context(), "map"); err != nil || string(o.Data()) != "a" {
			t.Fatalf("the next term claims %v: %v", o, err)
		}
		if err := o.Write(t.Context(), []byte("b")); !errors.Is(err, ErrFenced) {
			t.Errorf("a write after a later claim: %v", err)
		}
		if _, err := term.Claim(t.Context(), "map"); !errors.Is(err, ErrFenced) {
			t.Errorf("a claim after a later claim: %v", err)
		}
		time.Sleep(time.Second)
		if err := o.Write(t.Context(), []byte("b")); !errors.Is(err, ErrNotLeading) {
			t.Errorf("a write after the term's end: %v", err)
		}
	})
}
