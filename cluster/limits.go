package cluster

import (
	"context"
	"time"

	clusterv1 "grebe/api/grebe/cluster/v1"
)

// Limits are the limits of clients' keys in this process, which hold over all members. *guard.Guard has them.
type Limits interface {
	// Wake receives a value after requests were let through.
	Wake() <-chan struct{}
	// Spent returns what was let through since the process started.
	Spent() (number uint64, spent map[uint64]uint64)
	// SetPeers takes the ids of all other members.
	SetPeers(ids []string)
	// Heard takes another member's report, and Missed that it does not answer.
	Heard(id, boot string, number uint64, spent map[uint64]uint64)
	Missed(id string)
	// LimitShare is the share of the limits that the members in reach have.
	LimitShare() float64
	// KeysDigest identifies the keys, to compare; empty: there are none.
	KeysDigest() string
}

// reportWithin bounds a report. A member that takes longer counts as out of reach.
const reportWithin = 300 * time.Millisecond

// reportEvery returns the time between two rounds of reports: about 100 reports a second, whatever the number of
// members.
func reportEvery(others int) time.Duration {
	return min(max(time.Duration(others)*10*time.Millisecond, 20*time.Millisecond), 200*time.Millisecond)
}

// shareLimits tells the other members what was let through here, while there are requests.
func (c *Cluster) shareLimits() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.cfg.Limits.Wake():
		}
		ids := c.others()
		c.cfg.Limits.SetPeers(ids)
		report := c.spending()
		for _, id := range ids {
			c.reportTo(id, report)
		}
		timer.Reset(reportEvery(len(ids)))
		select {
		case <-c.ctx.Done():
			return
		case <-timer.C:
		}
	}
}

// others returns the ids of all other members, also of those that are refused: they have clients too.
func (c *Cluster) others() (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members.Members() {
		if m.ID != c.cfg.Node {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// reportTo sends a report. If one to the same member is under way, another one follows it.
func (c *Cluster) reportTo(id string, report *clusterv1.Spending) {
	c.mu.Lock()
	n, busy := c.known[id], c.reports[id] != 0
	if n != nil {
		c.reports[id]++
	}
	c.mu.Unlock()
	switch {
	case n == nil:
		c.cfg.Limits.Missed(id)
	case !busy:
		c.run.Go(func() {
			for c.reportOnce(id, n, report) {
				report = c.spending()
			}
		})
	}
}

// reportOnce sends a report. It returns true if another one was wanted meanwhile.
func (c *Cluster) reportOnce(id string, n *node, report *clusterv1.Spending) (again bool) {
	ctx, cancel := context.WithTimeout(c.ctx, reportWithin)
	defer cancel()
	answer, err := clusterv1.NewPeerClient(n.conn).Spend(ctx, report)
	if err != nil {
		c.cfg.Limits.Missed(id)
	} else {
		c.heard(answer)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reports[id] > 1 && c.ctx.Err() == nil {
		c.reports[id] = 1
		return true
	}
	delete(c.reports, id)
	return false
}

// spending is this process's report.
func (c *Cluster) spending() *clusterv1.Spending {
	r := &clusterv1.Spending{Node: c.cfg.Node, Boot: c.boot}
	var spent map[uint64]uint64
	r.Number, spent = c.cfg.Limits.Spent()
	for key, n := range spent {
		r.Keys, r.Spent = append(r.Keys, key), append(r.Spent, n)
	}
	return r
}

func (c *Cluster) heard(r *clusterv1.Spending) {
	spent := make(map[uint64]uint64, len(r.Keys))
	for i := range min(len(r.Keys), len(r.Spent)) {
		spent[r.Keys[i]] = r.Spent[i]
	}
	c.cfg.Limits.Heard(r.Node, r.Boot, r.Number, spent)
}

// Spend answers another member's report with one of this process.
func (p probes) Spend(_ context.Context, r *clusterv1.Spending) (*clusterv1.Spending, error) {
	if p.c.cfg.Limits == nil { // nothing is counted here
		return &clusterv1.Spending{Node: p.c.cfg.Node, Boot: p.c.boot, Number: uint64(time.Now().UnixNano())}, nil
	}
	p.c.cfg.Limits.SetPeers(p.c.others())
	p.c.heard(r)
	return p.c.spending(), nil
}
