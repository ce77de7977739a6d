package ahead

import (
	"context"
	"errors"
	"strings"
	"time"

	"grebe/reuse"
	"grebe/schedule"
)

// due returns the pass to make now.
func (m *model) due(asked bool) pass {
	share := m.opt.share(m.name)
	switch {
	case share.Wait: // also one that was asked for
		return noPass
	case asked:
		return fullPass
	case m.opt.Off:
		return noPass
	}
	c, release := m.take()
	defer release()
	if c.Cache == nil {
		return noPass
	}
	last, since := m.progress().State, time.Since(m.ended)
	rested := since >= restFor*m.took
	switch {
	case c.Cache != m.cache || share.Epoch != m.epoch:
		return fullPass
	case last == Failed:
		if since >= retryAfter {
			return fullPass
		}
		return noPass
	case rested && schedule.AheadAgain(m.opt.Catalog.Stats().Items, int(m.changes.Load()-m.seen)):
		return fullPass
	case rested && last == Full && c.Cache.AheadRoom(c.space()).Wide():
		return fullPass
	}
	hot := m.hottestNow(&share)
	// The hot items of all are published seldom: each new one counts.
	if fresh(m.hot, hot[:len(share.Hot)]) > 0 || schedule.AheadHot(len(hot), fresh(m.hot, hot)) {
		return hotPass
	}
	return noPass
}

// mostHot is the length of the list of hottest items. A change of this list starts a short pass.
const mostHot = 64

// hottestNow returns the items that are hot for all processes, then those that are hot here.
func (m *model) hottestNow(share *Share) []Hot {
	here := m.opt.Hot()
	asked := make(map[string]int64, len(here))
	for _, h := range here {
		asked[h.ID] = h.Asked
	}
	out, all := make([]Hot, 0, len(share.Hot)+mostHot), make(map[string]bool, len(share.Hot))
	for _, id := range share.Hot {
		out, all[id] = append(out, Hot{ID: id, Asked: max(1, asked[id])}), true
	}
	for _, h := range here[:min(mostHot, len(here))] {
		if !all[h.ID] {
			out = append(out, h)
		}
	}
	return out
}

// full goes over all items of the catalog.
func (m *model) full(ctx context.Context) {
	began := time.Now()
	c, release := m.take()
	release()
	if c.Cache == nil {
		m.set(func(p *Progress) { *p = Progress{Model: m.name, State: Idle} })
		return
	}
	share := m.opt.share(m.name)
	m.cache, m.seen, m.hot, m.epoch = c.Cache, m.changes.Load(), m.hottestNow(&share), share.Epoch
	m.set(func(p *Progress) { *p = Progress{Model: m.name, State: Computing, began: began} })
	list, err := m.list(ctx, c.Cache, share.Mine)
	if err == nil {
		m.set(func(p *Progress) { p.Items, p.Left = len(list.IDs), len(list.IDs) })
		err = m.goOver(ctx, &c, list, m.tell())
	}
	m.ended, m.took = time.Now(), time.Since(began)
	if ctx.Err() != nil {
		m.set(func(p *Progress) { p.State = Idle })
		return
	}
	if errors.Is(err, errReplaced) { // also if Off: whoever asked still waits for it
		m.again()
		return
	}
	m.set(func(p *Progress) {
		p.Seconds = m.took.Seconds()
		if err != nil {
			p.State, p.Error = Failed, err.Error()
		}
	})
	if p := m.progress(); err != nil {
		m.opt.Log.Warn("items were not computed ahead", "model", m.name, "error", err, "left", p.Left)
	} else if p.Computed+p.Fetched > 0 {
		m.opt.Log.Info("items computed ahead", "model", m.name, "state", p.State, "computed", p.Computed,
			"fetched", p.Fetched, "tokens", p.Tokens,
			"items", p.Items, "left", p.Left, "too_long", p.TooLong, "failed", p.Failed, "seconds", p.Seconds)
	}
}

// hottest computes the items that requests name most. Items that fail are left to the next full pass.
func (m *model) hottest(ctx context.Context) {
	c, release := m.take()
	release()
	if c.Cache == nil {
		return
	}
	share := m.opt.share(m.name)
	m.hot = m.hottestNow(&share)
	list := reuse.Listed{Item: m.opt.Catalog.Item}
	for _, h := range m.hot {
		list.IDs, list.Heat = append(list.IDs, h.ID), append(list.Heat, schedule.Heat{Asked: h.Asked})
	}
	err := m.goOver(ctx, &c, list, func(*reuse.AheadDid) {})
	if err != nil && !errors.Is(err, errReplaced) && ctx.Err() == nil {
		m.opt.Log.Warn("the hottest items were not computed ahead", "model", m.name, "error", err)
	}
}

const (
	// mostUsers bounds the histories that are counted. Any users are a good enough sample.
	mostUsers = 1 << 17
	// countedAtOnce is the number of events counted before the pass gives way to requests.
	countedAtOnce = 4096
)

// list returns the items of the catalog that are mine, with their heat. It works in idle time.
func (m *model) list(ctx context.Context, cache *reuse.Cache,
	mine func(id string) bool) (list reuse.Listed, err error) {
	index := map[string]int32{}
	err = cache.Idle(ctx, func() error {
		list = reuse.Listed{Item: m.opt.Catalog.Item}
		for e := range m.opt.Catalog.Scan() {
			if mine == nil || mine(e.Item.ID) {
				id := strings.Clone(e.Item.ID)
				index[id] = int32(len(list.IDs))
				list.IDs = append(list.IDs, id)
			}
		}
		list.Heat = make([]schedule.Heat, len(list.IDs))
		return nil
	})
	if err != nil {
		return list, err
	}
	for _, h := range m.opt.Hot() {
		if i, ok := index[h.ID]; ok {
			list.Heat[i].Asked = h.Asked
		}
	}
	users := m.opt.Catalog.Users(mostUsers)
	count := func(id string) {
		if i, ok := index[id]; ok {
			list.Heat[i].Listed++
		}
	}
	for len(users) > 0 && err == nil {
		err = cache.Idle(ctx, func() error {
			for n := 0; n < countedAtOnce && len(users) > 0; users = users[1:] {
				u := users[0]
				for _, id := range u.History {
					count(id)
				}
				for _, e := range u.Events {
					count(e.Item)
				}
				n += 1 + len(u.History) + len(u.Events)
			}
			return nil
		})
	}
	return list, err
}

const (
	// stepWithin bounds a step. A step that takes longer waits for a disk that hangs, and a reload must not wait for it.
	stepWithin = 2 * time.Minute
	// mostFailures is the number of consecutive failed steps that ends a pass. The items of a failed step are skipped.
	mostFailures = 3
)

// errReplaced means that another checkpoint serves, or that the catalog is divided in another way, and needs a pass of
// its own.
var errReplaced = errors.New("another checkpoint serves, or another part of the catalog is this process's")

// goOver computes listed items. It returns errReplaced if the checkpoint or the division of the catalog is replaced
// meanwhile.
func (m *model) goOver(ctx context.Context, c *Checkpoint, list reuse.Listed, tell func(*reuse.AheadDid)) error {
	list.Disk = c.space()
	work := c.Cache.Ahead(list)
	var told time.Time
	for failures := 0; ; {
		var did reuse.AheadDid
		gone := false
		err := c.Cache.Idle(ctx, func() error {
			now, release := m.take()
			defer release()
			if gone = now.Cache != c.Cache || m.opt.share(m.name).Epoch != m.epoch; gone {
				return nil
			}
			within, cancel := context.WithTimeout(ctx, stepWithin)
			defer cancel()
			var err error
			did, err = work.Step(within, now.Do)
			return err
		})
		if err != nil {
			if failures++; ctx.Err() != nil || failures == mostFailures {
				return err
			}
			tell(&did)
			if time.Since(told) >= tellEvery {
				told = time.Now()
				m.opt.Log.Warn("items are skipped: they could not be computed ahead", "model", m.name, "items", did.Failed,
					"error", err)
			}
			continue
		}
		failures = 0
		if gone {
			return errReplaced
		}
		m.count(&did)
		tell(&did)
		if did.Step >= schedule.AheadFull {
			return nil
		}
	}
}

// count adds to what was computed since the start.
func (m *model) count(did *reuse.AheadDid) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.items += int64(did.Computed)
	m.tokens += int64(did.Tokens)
}

// tellEvery is the time between log lines of one pass.
const tellEvery = 30 * time.Second

// tell returns a function that records and logs the steps of a full pass.
func (m *model) tell() func(*reuse.AheadDid) {
	var told time.Time
	return func(did *reuse.AheadDid) {
		m.set(func(p *Progress) {
			p.Computed, p.Tokens, p.Left = p.Computed+did.Computed, p.Tokens+did.Tokens, did.Left
			p.Fetched += did.Fetched
			p.TooLong, p.Failed = p.TooLong+did.TooLong, p.Failed+did.Failed
			switch did.Step {
			case schedule.AheadFull:
				p.State = Full
			case schedule.AheadDone:
				p.State = Done
			}
		})
		p := m.progress()
		switch {
		case p.Computed == 0 || p.State != Computing:
		case told.IsZero():
			told = time.Now()
			m.opt.Log.Info("computing items ahead", "model", m.name, "items", p.Items)
		case time.Since(told) >= tellEvery:
			told = time.Now()
			m.opt.Log.Info("computing items ahead", "model", m.name, "items", p.Items, "computed", p.Computed,
				"tokens", p.Tokens, "left", p.Left)
		}
	}
}
