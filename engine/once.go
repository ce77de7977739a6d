package engine

import (
	"hash/maphash"
	"slices"
	"unsafe"

	"grebe/compute"
	"grebe/kv"
	"grebe/plan"
)

// once finds segments of a batch that mean the same, so that they are computed once. Two do when they have the same
// kind, tokens, numbers and start, and see the same segments in the same order. What a segment yields depends on
// nothing else, so its KV and its answers are the other's, on the CPU to the bit.
//
// Later segments see the one that is computed in place of its equals, and see it as often as they would have seen
// these: attention counts every key, and a repeated item has its weight in it. Answers of equal segments are read at
// the same row.
//
// Only jobs with Once take part, and of those none that blend, search or have beams. KV that is to be kept is not taken
// from a segment whose KV is not.
type once struct {
	seed  maphash.Seed
	table []int32 // by hash: 1 + a segment of the batch; a place that is taken is followed by the next
	all   []meaning
}

// meaning is a segment of the batch as once knows it.
type meaning struct {
	segment *plan.Segment // nil: it takes no part
	same    int32         // the segment of the batch that is computed in its place, or itself
	entry   *kv.Entry     // that all of its KV is in; nil: in none
	refused bool          // it should have been kept, but there was no room
}

// Shared counts what a job did not compute because an equal segment was computed.
type Shared struct {
	Request    int     // tokens that another segment of the job computed
	Concurrent int     // tokens that another job computed, in the same batch or since this one was queued
	Awaited    int     // of Concurrent, those that the job waited for in the queue; the queue's owner fills it in
	Segments   []int32 // these segments, ascending; what the job has of them in entries is not counted as shared
	// Cost is what Check counted for these tokens.
	Cost Cost
	Tier plan.Tier // where the KV lies
}

// Has reports whether a segment is among those that were not computed.
func (s *Shared) Has(segment int) bool {
	_, has := slices.BinarySearch(s.Segments, int32(segment))
	return has
}

// reset forgets the last batch and makes room for the segments of tasks.
func (o *once) reset(tasks []task) {
	if o.table == nil {
		o.seed = maphash.MakeSeed()
	}
	segments := 0
	for i := range tasks {
		segments += len(tasks[i].job.Plan.Segments)
	}
	size := 64
	for size < 2*segments {
		size *= 2
	}
	o.table = slices.Grow(o.table[:0], size)[:size]
	clear(o.table)
	clear(o.all)
	o.all = o.all[:0]
}

// takesPart reports whether a job's segments may be shared.
func (j *Job) takesPart() bool { return j.Once && j.Blend == nil && j.Search == nil && j.Beams == nil }

// hashed is how many tokens of a segment find hashes, the last ones: long histories that end alike are compared.
const hashed = 512

// find returns an earlier segment of the batch that means the same, or negative, and the place in the table of either.
func (p *pass) find(seg *plan.Segment, sees []int32) (segment int32, place int) {
	o := &p.once
	tail := seg.Tokens[max(0, len(seg.Tokens)-hashed):]
	hash := maphash.Bytes(o.seed, bytesOf(tail)) + uint64(len(seg.Tokens))<<32 +
		31*maphash.Bytes(o.seed, bytesOf(sees)) + uint64(seg.Start)<<8 + uint64(seg.Kind)
	mask := len(o.table) - 1
	for place = int(hash) & mask; ; place = (place + 1) & mask {
		at := o.table[place] - 1
		if at < 0 {
			return -1, place
		}
		if int(at) < len(o.all) && o.all[at].segment != nil && p.means(at, seg, sees) {
			return at, place
		}
	}
}

// means reports whether segment at of the batch is computed from the same as seg, which sees these segments of the
// batch.
func (p *pass) means(at int32, seg *plan.Segment, sees []int32) bool {
	s := p.once.all[at].segment
	return s.Kind == seg.Kind && s.Start == seg.Start && s.Scale == seg.Scale && slices.Equal(s.Tokens, seg.Tokens) &&
		slices.Equal(s.Extra, seg.Extra) && slices.Equal(s.Content, seg.Content) &&
		slices.Equal(p.batch.Segments[at].Sees, sees)
}

// share has segment i of a task's job be that segment of the batch, if it can be, and reports whether it is.
func (p *pass) share(e *Engine, t *task, i int, with int32, sees []int32) bool {
	job, r, of := t.job, &t.out.Result, &p.once.all[with]
	seg := &job.Plan.Segments[i]
	tokens, done := len(seg.Tokens), job.done(i)
	if done < tokens {
		if p.batch.Segments[with].Rows() == 0 && job.answers(i) || job.keeps(i) && of.entry == nil && !of.refused {
			return false
		}
		if job.keeps(i) && of.entry != nil {
			p.retain(r, i, of.entry)
		}
		if int(with) < t.base {
			r.Shared.Concurrent += tokens - done
		} else {
			r.Shared.Request += tokens - done
		}
		r.Shared.Segments = append(r.Shared.Segments, int32(i))
		r.Shared.Cost.Rows += tokens - done
		r.Shared.Cost.Keys += job.keys(i, done)
		r.Shared.Tier = e.home
	} else if job.keeps(i) {
		p.retain(r, i, job.cached(i))
	}
	r.Cached += tokens
	p.once.all = append(p.once.all, meaning{same: with})
	p.batch.Segments = append(p.batch.Segments, compute.Segment{
		First: len(p.batch.Tokens), Sees: sees, Start: seg.Start, Scale: seg.Scale})
	return true
}

// answers reports whether something is wanted of a segment.
func (j *Job) answers(segment int) bool {
	return slices.Contains(j.Hidden, segment) || slices.ContainsFunc(j.Want,
		func(w Want) bool { return w.Segment == segment })
}

// keys returns how many keys the tokens of segment i behind the first ones attend to, summed.
func (j *Job) keys(i, first int) int {
	s := &j.Plan.Segments[i]
	n, seen := len(s.Tokens), 0
	for _, k := range s.Sees {
		seen += len(j.Plan.Segments[k].Tokens)
	}
	return (n-first)*seen + (n*(n+1)-first*(first+1))/2
}

// Tiers counts the tokens that were not computed for a job by where their KV was found. A shared segment is where it is
// shared, whatever the job has of it elsewhere.
func (r *Result) Tiers(j *Job) (tokens [plan.NumTiers]int) {
	tokens = j.Tiers()
	for _, i := range r.Shared.Segments {
		n, at := j.Cached(int(i))
		tokens[at] -= n
		tokens[r.Shared.Tier] += len(j.Plan.Segments[i].Tokens)
	}
	return tokens
}

// Source returns how many tokens of segment i of a job were not computed for it, and where their KV was found.
func (r *Result) Source(j *Job, i int) (tokens int, at plan.Tier) {
	if r.Shared.Has(i) {
		return len(j.Plan.Segments[i].Tokens), r.Shared.Tier
	}
	return j.Cached(i)
}

// bytesOf returns the memory of some numbers.
func bytesOf(s []int32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), 4*len(s))
}
