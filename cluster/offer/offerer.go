package offer

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"grebe/placement"
	"grebe/plan"
	"grebe/residency"
)

// Books are what a node holds. *kv.Store has them.
type Books interface {
	Position() (boot, seq uint64)
	Since(dst []residency.Event, boot, seq uint64, most int) ([]residency.Event, bool)
	Scan(visit func(piece []residency.Event) bool)
}

// Members are the kv members that a node can offer to.
type Members interface {
	// Holders returns the members, and a value that changes with them and with each of their restarts.
	Holders() (members []placement.Member, generation string)
	// Has sets has[i] if a member is known to hold blocks[i].
	Has(member string, blocks []Block, has []bool)
	// Send sends an offer.
	Send(ctx context.Context, member string, o *Offer) (busy bool, err error)
	// Shown returns the record of the catalog up to which the KV of deleted users is removed here; false: some is being
	// removed.
	Shown() (index uint64, ok bool)
}

// Offerer offers a node's blocks to kv members.
type Offerer struct {
	Node    string
	Books   Books
	Members Members
	Log     *slog.Logger

	owners     Owners
	generation string
	boot, seq  uint64
	events     []residency.Event
	has        []bool
}

const (
	lookEvery = 100 * time.Millisecond // for new blocks
	noneEvery = time.Second            // for members, while there is none
	sendTime  = 2 * time.Second
	busyPause = 500 * time.Millisecond
	busyTries = 20 // a member that is busy for longer does not get this offer
)

// Run offers blocks until ctx ends.
func (o *Offerer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		pause(ctx, o.round(ctx))
	}
}

// round offers what changed, or everything if the members changed or events were missed. It returns how long to wait.
func (o *Offerer) round(ctx context.Context) time.Duration {
	members, generation := o.Members.Holders()
	if len(members) == 0 {
		o.generation = ""
		return noneEvery
	}
	if generation != o.generation {
		owners, err := NewOwners(members)
		if err != nil {
			o.Log.Error("cannot divide KV between members with the role kv", "error", err)
			return noneEvery
		}
		o.owners, o.generation, o.boot = owners, generation, 0
	}
	events, ok := o.Books.Since(o.events[:0], o.boot, o.seq, Most)
	o.events = events
	if !ok || o.boot == 0 {
		o.all(ctx)
		return 0
	}
	if len(events) == 0 {
		return lookEvery
	}
	o.seq = events[len(events)-1].Seq
	o.offer(ctx, events)
	return 0
}

// all offers everything. A change of members ends it: it begins again then.
func (o *Offerer) all(ctx context.Context) {
	o.boot, o.seq = o.Books.Position()
	o.Books.Scan(func(piece []residency.Event) bool {
		o.offer(ctx, piece)
		_, generation := o.Members.Holders()
		return ctx.Err() == nil && generation == o.generation
	})
}

// offer offers entries to their owners.
func (o *Offerer) offer(ctx context.Context, events []residency.Event) {
	shown, settled := o.shown(ctx)
	byOwner := map[string][]Block{}
	for i := range events {
		e := &events[i]
		if e.Tier == plan.Missing || e.Kind != plan.Item && (e.Kind != plan.User || e.Digest == 0 || !settled) {
			continue
		}
		owner := o.owners.Of(&e.Key)
		byOwner[owner] = append(byOwner[owner], Block{e.Key, int(e.Tokens), e.Digest})
	}
	for owner, blocks := range byOwner {
		o.has = append(o.has[:0], make([]bool, len(blocks))...)
		o.Members.Has(owner, blocks, o.has)
		left := blocks[:0]
		for i := range blocks {
			if !o.has[i] {
				left = append(left, blocks[i])
			}
		}
		for piece := range slices.Chunk(left, Most) {
			o.send(ctx, owner, &Offer{Node: o.Node, Shown: shown, Blocks: piece})
		}
	}
}

// shown waits until no KV of deleted users is left here. It MUST be called before blocks are looked up. False: it takes
// too long, and users are not offered.
func (o *Offerer) shown(ctx context.Context) (index uint64, ok bool) {
	for range busyTries {
		if index, ok = o.Members.Shown(); ok || ctx.Err() != nil {
			return index, ok
		}
		pause(ctx, lookEvery)
	}
	return index, false
}

// send sends an offer. A member that is busy gets it a few times more, and one that does not answer comes again with
// another boot.
func (o *Offerer) send(ctx context.Context, member string, f *Offer) {
	for range busyTries {
		within, cancel := context.WithTimeout(ctx, sendTime)
		busy, err := o.Members.Send(within, member, f)
		cancel()
		if err != nil {
			o.Log.Debug("cannot offer KV to a member with the role kv", "member", member, "error", err)
		}
		if err != nil || !busy {
			return
		}
		pause(ctx, busyPause)
		if _, generation := o.Members.Holders(); generation != o.generation || ctx.Err() != nil {
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
