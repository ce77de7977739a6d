package cluster

import (
	"context"
	"time"

	"grebe/cluster/feed"
)

// pollSelf is the time between two looks at this process's own books.
const pollSelf = 20 * time.Millisecond

// followSelf follows this process's own books, as the feed of another node is followed, but without a socket.
func (f *fleet) followSelf(ctx context.Context, s *slot, secret *feed.Secret) {
	select { // others do not know of its KV before, either
	case <-f.c.readied:
	case <-ctx.Done():
		return
	}
	session := feed.NewPublisher(s.id, *secret, f, f.load).Session()
	defer session.Close()
	follower := feed.NewFollower(feed.FollowerConfig{Node: s.number, ID: s.id, Secret: *secret, Sink: f.router})
	f.mu.Lock()
	follower.Connected(f.c.now())
	f.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for wait := time.Duration(0); ; timer.Reset(wait) {
		select {
		case <-ctx.Done():
			f.mu.Lock()
			follower.Close()
			f.mu.Unlock()
			return
		case <-timer.C:
		}
		moved, err := f.pump(session, follower)
		if err != nil {
			f.c.cfg.Log.Warn("the list of this process's own KV was interrupted: sending it again",
				"model", f.model.Name, "error", err)
			session.Close()
			session = feed.NewPublisher(s.id, *secret, f, f.load).Session()
			f.mu.Lock()
			follower.Disconnected()
			follower.Connected(f.c.now())
			f.mu.Unlock()
		}
		now := f.c.now()
		if wait = feed.NextBeat(now) - now; moved {
			wait = min(wait, pollSelf)
		}
	}
}

// pump moves messages between the two sides. It reports whether there were changes.
func (f *fleet) pump(s *feed.Session, to *feed.Follower) (moved bool, err error) {
	for {
		now := f.c.now()
		f.mu.Lock()
		err := to.Tick(now)
		ask := to.Ask(now)
		f.mu.Unlock()
		if err != nil {
			return moved, err
		}
		if ask != nil {
			if err := s.Hear(ask, now); err != nil {
				return moved, err
			}
		}
		m, err := s.Next(now) // without the lock: it looks at the books
		if err != nil {
			return moved, err
		}
		if m == nil && ask == nil {
			return moved, nil
		}
		if m == nil {
			continue
		}
		moved = moved || m.Delta != nil || m.Snapshot != nil
		f.mu.Lock()
		err = to.Take(m, f.c.now())
		f.mu.Unlock()
		if err != nil {
			return moved, err
		}
	}
}
