package cluster

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/cluster/coord"
	"grebe/cluster/member"
)

// change is a change of a node's state.
type change struct {
	member.Change
	at time.Time
}

const mostChanges = 50

// probed is the result of a probe.
type probed struct {
	probe    member.Probe
	answered string // boot id; empty: nobody answered
}

// follow keeps the set of members up to date.
func (c *Cluster) follow() {
	records := c.cfg.Coordinator.Watch(c.ctx, nodesKey)
	drained := c.cfg.Coordinator.Watch(c.ctx, drainKey)
	flags, opened := map[string]coord.Entry{}, c.opened
	results := make(chan probed, 64)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for records != nil || drained != nil {
		var out []member.Change
		select {
		case e, ok := <-records:
			if !ok {
				records = nil
				continue
			}
			out = c.told(e)
		case e, ok := <-drained:
			if !ok {
				drained = nil
				continue
			}
			if e.Kind == coord.Lost {
				continue
			}
			e.Apply(flags)
			c.drain(flags)
		case r := <-results:
			c.mu.Lock()
			out = c.members.Probed(time.Now(), r.probe, r.answered)
			c.mu.Unlock()
		case <-opened:
			opened = nil
		case <-timer.C:
		}
		now := time.Now()
		c.mu.Lock()
		probes, more := c.members.Tick(now)
		next := c.members.Next()
		c.mu.Unlock()
		for _, p := range probes {
			c.run.Go(func() { c.probe(p, results) })
		}
		c.changed(now, append(out, more...))
		c.followNodes()
		wait := time.Hour
		if !next.IsZero() {
			wait = max(0, time.Until(next))
		}
		timer.Reset(wait)
	}
}

// told takes what the coordinator says about members.
func (c *Cluster) told(e coord.Event) (out []member.Change) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Kind == coord.Lost {
		c.members.Away()
		return nil
	}
	var records []member.Record
	for _, n := range e.Entries {
		r, err := member.Decode(n.Data)
		if err != nil || r.ID != strings.TrimPrefix(n.Key, nodesKey) {
			c.cfg.Log.Warn("a member's record is not valid", "key", n.Key, "error", err)
			continue
		}
		records = append(records, r)
	}
	if e.Kind == coord.Listing {
		if !c.listed {
			c.listed = true
			close(c.met)
		}
		return c.members.Listing(now, records)
	}
	for _, r := range records {
		out = append(out, c.members.Put(now, r)...)
	}
	for _, key := range e.Deleted {
		out = append(out, c.members.Remove(now, strings.TrimPrefix(key, nodesKey))...)
	}
	return out
}

// drain takes operators' flags.
func (c *Cluster) drain(flags map[string]coord.Entry) {
	var ids []string
	for key := range flags {
		ids = append(ids, strings.TrimPrefix(key, drainKey))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members.Drained(ids)
}

// changed logs and keeps changes.
func (c *Cluster) changed(at time.Time, list []member.Change) {
	for _, x := range list {
		level := slog.LevelInfo
		attrs := []any{"node", x.ID, "boot", x.Boot, "from", x.From.String(), "to", x.To.String()}
		if x.To != member.Active {
			attrs = append(attrs, "draining", x.Draining)
			if !x.Draining { // it did not announce that it stops
				level = slog.LevelWarn
			}
		}
		c.cfg.Log.Log(c.ctx, level, "a member's state changed", attrs...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range list {
		c.changes = append(c.changes, change{x, at})
	}
	if over := len(c.changes) - mostChanges; over > 0 {
		c.changes = slices.Delete(c.changes, 0, over)
	}
}

// probeWithin bounds a probe.
const probeWithin = 500 * time.Millisecond

// probe asks a member who it is.
func (c *Cluster) probe(p member.Probe, results chan<- probed) {
	ctx, cancel := context.WithTimeout(c.ctx, probeWithin)
	defer cancel()
	r := probed{probe: p}
	if conn, err := c.wire.dial(p.ID, p.Peer); err == nil {
		if a, err := clusterv1.NewPeerClient(conn).Probe(ctx, &clusterv1.ProbeRequest{}); err == nil && a.Node == p.ID {
			r.answered = a.Boot
		}
		conn.Close()
	}
	select {
	case results <- r:
	case <-c.ctx.Done():
	}
}

// Drain sets or removes the flag by which operators take a node out.
func (c *Cluster) Drain(ctx context.Context, id string, drained bool) error {
	for {
		e, err := c.cfg.Coordinator.Get(ctx, drainKey+id)
		if err != nil || (e.Version != 0) == drained {
			return err
		}
		if drained {
			_, err = c.cfg.Coordinator.Swap(ctx, drainKey+id, []byte("drained"), 0, nil)
		} else {
			err = c.cfg.Coordinator.Delete(ctx, drainKey+id, e.Version)
		}
		if !errors.Is(err, coord.ErrConflict) {
			return err
		}
	}
}
