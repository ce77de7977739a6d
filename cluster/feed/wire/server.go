package wire

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/cluster/feed"
)

// ServerConfig describes a server.
type ServerConfig struct {
	Publisher *feed.Publisher
	// of all feeds of the process, which send heartbeats together; default: since NewServer
	Clock func() time.Duration
	// between two looks at a feed that had events in the last second; default 20 ms, else with heartbeats
	Poll       time.Duration
	Stall      time.Duration // a follower that takes no message for so long is cut off; default 1 s
	AuditEvery time.Duration // default feed.AuditEvery
	AuditSpan  time.Duration // least time between two audits that followers ask for; default 1 s
}

func (c *ServerConfig) defaults() {
	if c.Clock == nil {
		start := time.Now()
		c.Clock = func() time.Duration { return time.Since(start) }
	}
	for _, d := range []struct {
		value *time.Duration
		to    time.Duration
	}{{&c.Poll, 20 * time.Millisecond}, {&c.Stall, time.Second}, {&c.AuditEvery, feed.AuditEvery},
		{&c.AuditSpan, time.Second}} {
		if *d.value == 0 {
			*d.value = d.to
		}
	}
}

const (
	maxAsks  = 16  // that wait for a session
	mostWant = 256 // buckets in one audit
)

// Server serves a node's feed. Register it with clusterv1.RegisterFeedServer. It MUST be closed.
type Server struct {
	clusterv1.UnimplementedFeedServer
	config  ServerConfig
	context context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	demand  chan struct{} // a follower asked for an audit

	mu        sync.Mutex
	closed    bool
	followers map[*follower]bool
}

// follower is the server's end of a subscription.
type follower struct {
	asks   chan *clusterv1.Ask
	audits chan *feed.Audit // the last one that is not sent
	stall  *time.Timer      // runs while a message is being sent
	want   []uint32         // buckets; guarded by Server.mu
}

// NewServer returns a server, which adds up the books now and then.
func NewServer(c ServerConfig) *Server {
	c.defaults()
	s := &Server{config: c, followers: map[*follower]bool{}, demand: make(chan struct{}, 1)}
	s.context, s.cancel = context.WithCancel(context.Background())
	s.running.Go(s.audit)
	return s
}

// Close ends all subscriptions and waits for them.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.running.Wait()
}

func (s *Server) now() time.Duration { return s.config.Clock() }

// errClosing ends subscriptions when the server is closed.
var errClosing = status.Error(codes.Unavailable, "feed: the node is closing")

// Subscribe serves one follower.
func (s *Server) Subscribe(stream clusterv1.Feed_SubscribeServer) error {
	f := &follower{asks: make(chan *clusterv1.Ask, maxAsks), audits: make(chan *feed.Audit, 1),
		stall: time.NewTimer(s.config.Stall)}
	f.stall.Stop()
	ended := make(chan error, 2)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosing
	}
	s.followers[f] = true
	// Both end soon after this handler returns, because the stream is canceled then. Close waits for them.
	s.running.Go(func() { ended <- f.receive(stream) })
	s.running.Go(func() { ended <- s.send(stream, f) })
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.followers, f)
		s.mu.Unlock()
	}()
	select {
	case err := <-ended:
		return asStatus(err)
	case <-s.context.Done():
		return errClosing
	case <-f.stall.C:
		return asStatus(feed.ErrSlow)
	}
}

// asStatus returns an error that followers see.
func asStatus(err error) error {
	switch {
	case errors.Is(err, feed.ErrSlow):
		return status.Error(codes.Aborted, err.Error())
	case errors.Is(err, feed.ErrProtocol) || errors.Is(err, feed.ErrNode):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, feed.ErrMalformed):
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return err
}

// receive passes on what a follower asks for.
func (f *follower) receive(stream clusterv1.Feed_SubscribeServer) error {
	for {
		a, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case f.asks <- a:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// send sends what a session has.
func (s *Server) send(stream clusterv1.Feed_SubscribeServer, f *follower) error {
	session := s.config.Publisher.Session()
	defer session.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	active := s.now() // when there were events
	for {
		m, err := session.Next(s.now())
		if err != nil {
			return err
		}
		if m != nil {
			f.stall.Reset(s.config.Stall)
			err := stream.Send(m)
			f.stall.Stop()
			if err != nil {
				return err
			}
			if m.Delta != nil {
				active = s.now()
			}
			timer.Reset(0)
		} else {
			now := s.now()
			wait := session.Wake() - now
			if now-active < time.Second {
				wait = min(wait, s.config.Poll)
			}
			timer.Reset(wait)
		}
		select {
		case a := <-f.asks:
			if err := session.Hear(a, s.now()); err != nil {
				return err
			}
			if want, audit := session.Wants(); audit {
				s.wants(f, want)
			}
		case a := <-f.audits:
			session.Audited(a)
		case <-timer.C:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// wants notes that a follower asked for an audit.
func (s *Server) wants(f *follower, want []uint32) {
	s.mu.Lock()
	f.want = slices.Clone(want)
	s.mu.Unlock()
	select {
	case s.demand <- struct{}{}:
	default: // one is noted
	}
}

// audit adds up the books every AuditEvery, and when followers ask for it.
func (s *Server) audit() {
	timer := time.NewTimer(s.config.AuditEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.demand:
		case <-s.context.Done():
			return
		}
		if want, any := s.wanted(); any {
			a := s.config.Publisher.Audit(want)
			for !a.Step() {
				if s.context.Err() != nil {
					a.Stop()
					return
				}
			}
			s.audited(a)
		}
		timer.Reset(s.config.AuditSpan)
		select {
		case <-timer.C:
		case <-s.context.Done():
			return
		}
		timer.Reset(s.config.AuditEvery)
	}
}

// wanted returns the buckets that followers wait for, and whether there are followers.
func (s *Server) wanted() (want []uint32, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.followers {
		n := min(len(f.want), mostWant-len(want))
		want = append(want, f.want[:n]...)
		if f.want = f.want[n:]; len(f.want) > 0 {
			select {
			case s.demand <- struct{}{}: // the rest is for the next audit
			default:
			}
		}
	}
	return want, len(s.followers) > 0
}

// audited gives an audit to all sessions. One that has not sent the last audit gets the new one instead.
func (s *Server) audited(a *feed.Audit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.followers {
		select {
		case <-f.audits:
		default:
		}
		select {
		case f.audits <- a:
		default: // cannot be: only this goroutine sends
		}
	}
}
