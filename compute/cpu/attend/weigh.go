package attend

import (
	"unsafe"

	"grebe/compute/cpu/internal/team"
)

// weighKeys are the keys of a task of weighing: queries are packed once for so many.
const weighKeys = 512

// weighing adds up the attention that keys receive, in a second pass over the scores: a task goes through all
// queries that see its keys, in their order, and owns the keys' sums. So the sums depend on the plan alone.
type weighing struct {
	job   team.Job
	final []lane // of each row's query heads, from the last Run over all rows
	tasks []weighTask
	seen  []int32 // segments that see the runs, one run after the other
	ends  []int32 // per run the end of its part of seen
	sums  []float32
}

// lane is what the softmax of a query ended with.
type lane struct{ max, sum float32 }

// weighTask is a span of a run's keys, of one KV head; at is where its sums are in those of the head.
type weighTask struct{ run, key, at int32 }

// start makes room for the lanes of a Run, if it is one over all rows.
func (x *weighing) start(a *Attention) {
	n := a.plan.rows * a.shape.Heads
	if len(a.plan.kept) > 0 || a.shape.Pointwise != nil {
		n = 0
	}
	x.final = grow(x.final, n)
}

// save keeps the state of a tile's n lanes, whose outputs are in rows.
func (x *weighing) save(a *Attention, t *tile, rows *[lanes]unsafe.Pointer, n int) {
	if len(x.final) == 0 {
		return
	}
	first, st := uintptr(unsafe.Pointer(&a.out[0])), t.walk.state
	for l, row := range rows[:n] {
		x.final[int(uintptr(row)-first)/(4*a.shape.HeadDim)] = lane{st.maxes[l], st.sums[l]}
	}
}

// Received sets out[row], for all rows of the batch, to the sum of the probabilities that the queries of the
// last Run, given again, have for the row's token, averaged over heads. That Run was over all rows, and the
// chunks are what they were.
func (a *Attention) Received(q, out []float32) {
	p, x := &a.plan, &a.weigh
	a.layer, a.q = a.attended, q[:p.rows*a.shape.Heads*a.shape.HeadDim]
	x.cut(p)
	x.sums = grow(x.sums, a.shape.KVHeads*p.keys)
	for h := 0; h < a.shape.KVHeads; h += p.heads {
		a.head = h
		heads := min(p.heads, a.shape.KVHeads-h)
		if p.heads < a.shape.KVHeads { // the scratch holds the last heads only
			a.team.Run(heads*len(p.blocks), &a.pack)
		}
		a.team.Run(heads*len(x.tasks), &x.job)
	}
	a.q = nil
	a.addUp(out)
}

// cut lists the tasks, and which segments see a run.
func (x *weighing) cut(p *plan) {
	x.tasks, x.seen, x.ends = x.tasks[:0], x.seen[:0], x.ends[:0]
	at := 0
	for r := range p.runs {
		for key := 0; key < p.runs[r].keys; key += weighKeys {
			x.tasks = append(x.tasks, weighTask{int32(r), int32(key), int32(at + key)})
		}
		at += p.runs[r].padded()
		x.ends = append(x.ends, 0)
	}
	for _, r := range p.views {
		x.ends[r]++
	}
	n := int32(0)
	for r := range x.ends { // starts, which become ends
		n, x.ends[r] = n+x.ends[r], n
	}
	x.seen = grow(x.seen, int(n))
	for i := range p.batch.Segments {
		for _, r := range p.viewOf(int32(i)) {
			x.seen[x.ends[r]] = int32(i)
			x.ends[r]++
		}
	}
}

// viewers returns the segments that see a run.
func (x *weighing) viewers(run int32) []int32 {
	first := int32(0)
	if run > 0 {
		first = x.ends[run-1]
	}
	return x.seen[first:x.ends[run]]
}

// weighTask adds up what a span of keys receives from one head's queries.
func (a *Attention) weighTask(worker, task int) {
	w, x := a.workers[worker], &a.weigh
	slot, k := task/len(x.tasks), &x.tasks[task%len(x.tasks)]
	r := &a.plan.runs[k.run]
	n := min(weighKeys, r.keys-int(k.key))
	byLane := unsafe.Slice((*[lanes / 2]float32)(w.sums), weighKeys)
	clear(byLane)
	for _, i := range x.viewers(k.run) {
		q := &a.plan.queries[i]
		own := a.plan.alone[i] == k.run
		for first := q.skip * a.group / lanes * lanes; first < (q.skip+q.n)*a.group; first += lanes {
			if last := min(first+lanes, (q.skip+q.n)*a.group) - 1; own && last/a.group < int(k.key) {
				continue // all keys are hidden
			}
			w.unit = unit{segment: i, lane: int32(first), tiles: 1, siblings: 1}
			a.weighTile(w, slot, k, n, own)
		}
	}
	for i, to := 0, x.sums[(a.head+slot)*a.plan.keys+int(k.at):]; i < n; i++ {
		to[i] = 0
		for _, v := range byLane[i] {
			to[i] += v
		}
	}
}

// weighTile adds the probabilities of the worker's tile of queries for a span of n keys to their sums.
func (a *Attention) weighTile(w *worker, slot int, k *weighTask, n int, own bool) {
	t, u, r := &w.tiles[0], &w.unit, &a.plan.runs[k.run]
	a.begin(w, t, u, 0, slot)
	a.enter(t, u.segment, r.keys, own)
	a.endState(t, u, slot)
	x, end := &t.walk, min(int(k.key)+n, t.keys)
	for key := int(k.key); key < end; key += blockKeys {
		x.k = unsafe.Add(a.keysAt(r, slot), key*a.plan.keySize)
		x.block = roundUp(min(blockKeys, end-key), a.kern.keyStep)
		a.kern.scores(x)
		masked := 0
		if key+x.block > t.open {
			masked = 1
		}
		a.kern.weigh(x.s, x.state, unsafe.Add(w.sums, (key-int(k.key))*lanes/2*4), x.block, x.cols, key, masked, x.scale)
	}
}

// endState sets the state of a tile to what its softmax ended with: no score rises far enough above the maxima to
// change them. Factors are the inverse sums.
func (a *Attention) endState(t *tile, u *unit, slot int) {
	q, st := &a.plan.queries[u.segment], t.walk.state
	row, g := q.row-q.skip+t.first/a.group, t.first%a.group
	for l := range st.maxes {
		if t.first+l >= t.end {
			st.maxes[l], st.factors[l] = 0, 0
			continue
		}
		if g == a.group {
			row, g = row+1, 0
		}
		f := a.weigh.final[row*a.shape.Heads+(a.head+slot)*a.group+g]
		st.maxes[l], st.factors[l] = f.max, 1/f.sum
		g++
	}
}

// addUp adds the sums of all heads, and of all runs that a row's token is in.
func (a *Attention) addUp(out []float32) {
	p := &a.plan
	clear(out)
	at := 0
	for r := range p.runs {
		key := at
		for _, i := range p.members[p.runs[r].first:p.runs[r].last] {
			g := &p.batch.Segments[i]
			for t := g.Cached; t < g.Len; t++ {
				for h := range a.shape.KVHeads {
					out[g.First+t-g.Cached] += a.weigh.sums[h*p.keys+key+t]
				}
			}
			key += g.Len
		}
		at += p.runs[r].padded()
	}
	for row := range out {
		out[row] /= float32(a.shape.Heads)
	}
}

// grow returns a slice of n values, s where it has room.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}
