package feed

import (
	"fmt"
	"time"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/plan"
	"grebe/residency"
)

const (
	checkStep  = 32                    // buckets that are compared at once
	checkEvery = 10 * time.Millisecond // between two steps
	mostDiffer = buckets / 8           // if more buckets differ, a snapshot is cheaper
)

// check compares a node's sums with the index, a few buckets at a time. A bucket that changed after the sums is left
// out.
//
// The follower asks for the first buckets that differ. The node sends sums again with the repairs, so the others are
// found then.
type check struct {
	demand  bool     // ask for sums
	want    []uint32 // buckets to be asked for
	differ  []uint32 // buckets that differ
	sums    *clusterv1.Sums
	valid   bitset
	bucket  int           // next one
	due     time.Duration // when it is compared
	refused int64         // by the index, when the sums came
}

func (c *check) pending() bool { return c.sums != nil }

// stop ends the comparison. If it was not complete, it will be asked for again.
func (c *check) stop() {
	*c = check{demand: c.demand || c.sums != nil || len(c.want) > 0, refused: c.refused}
}

// touch leaves out the buckets of events.
func (c *check) touch(events []residency.Event) {
	if c.sums == nil {
		return
	}
	for i := range events {
		c.valid.clear(bucketOf(residency.Mix(residency.Hash(events[i].Key))))
	}
}

// sums takes a node's sums. They are ignored if others are being compared, or if the index has another state or had no
// room for some entries.
func (f *Follower) sums(boot uint64, s *clusterv1.Sums) error {
	c := &f.check
	if len(s.Users) != buckets || len(s.Others) != buckets || len(s.Valid) != len(c.valid) {
		return fmt.Errorf("%w: sums of %d and %d buckets", ErrMalformed, len(s.Users), len(s.Others))
	}
	_, _, refused := f.Sink.Index().Entries()
	full := refused != c.refused
	c.refused = refused
	if c.sums != nil || !f.whole || boot != f.boot || s.Seq != f.seq || full {
		return nil
	}
	*c = check{demand: c.demand, refused: refused, sums: s}
	copy(c.valid[:], s.Valid)
	return nil
}

// compare compares the next buckets.
func (f *Follower) compare(now time.Duration) {
	c := &f.check
	if c.sums == nil || now < c.due {
		return
	}
	c.due = now + checkEvery
	for range checkStep {
		if c.valid.has(c.bucket) && !f.same(c.bucket) {
			c.differ = append(c.differ, uint32(c.bucket))
			f.Stats.Differed++
		}
		if c.bucket++; c.bucket == buckets {
			c.sums = nil
			break
		}
	}
	switch {
	case len(c.differ) > mostDiffer:
		f.whole = false
		f.again(now)
	case c.sums == nil:
		c.want, c.differ = c.differ[:min(len(c.differ), maxRepair)], nil
	}
}

// same reports whether the index has what the node's sums say of a bucket.
func (f *Follower) same(b int) bool {
	users, others := uint64(0), uint64(0)
	f.Sink.Index().Visit(f.Node, bucketRange(b), func(at uint64, e residency.Entry) {
		if e.Kind == plan.User {
			users += userTerm(at, &e)
		} else {
			others += otherTerm(at, &e)
		}
	})
	return users == f.check.sums.Users[b] && (f.Partial || others == f.check.sums.Others[b])
}

// repair takes all entries of some buckets.
func (f *Follower) repair(boot uint64, r *clusterv1.Repair) error {
	if !f.whole || boot != f.boot || r.Seq != f.seq {
		return nil
	}
	entries, err := appendEvents(nil, r.Entries, 0, mostEntries)
	if err != nil {
		return err
	}
	for _, b := range r.Buckets {
		if b >= buckets {
			return fmt.Errorf("%w: bucket %d", ErrMalformed, b)
		}
		f.Sink.Replace(f.Node, bucketRange(int(b)), entries)
		f.Stats.Repaired++
	}
	return nil
}
