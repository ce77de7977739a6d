package cuda

import (
	"fmt"
	"math/bits"
	"slices"

	"grebe/compute"
	"grebe/compute/cuda/attend"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/topk"
	"grebe/internal/offheap"
)

// prepared is the selection of searches of the same widths in the same tree.
type prepared struct {
	tree     *tree
	widths   []int
	requests int // most at a time

	q       *topk.Search
	logits  driver.Ptr
	beams   []driver.Ptr // by level, what follow.cu reads; none for the first
	dead    driver.Ptr   // nodes to be left out
	room    int          // for so many of them
	sets    *topk.Sets   // of requests with filters; nil before the first
	staged  *driver.Host // dead nodes and filters on their way
	limited bool         // some request may keep less than all
	ran     []bool       // by requests: the products of so many were timed
}

// maxPrepared are kept per runner.
const maxPrepared = 6

// openSearch makes what the search needs.
func (r *runner) openSearch() error {
	s := &r.search
	dt, err := r.format()
	if err != nil {
		return err
	}
	if err := r.wait(); err != nil {
		return err
	}
	if err := r.need(dt); err != nil {
		return err
	}
	if !r.bufs.tensor {
		return compute.ErrNoSearch
	}
	if r.att == nil {
		if err := r.prepare(); err != nil {
			return err
		}
	}
	if s.att == nil {
		if err := r.openBeams(); err != nil {
			return err
		}
	}
	if err := r.layOut(); err != nil {
		return err
	}
	if s.now, err = r.prepared(); err != nil {
		return err
	}
	s.now.q.Use(len(s.spec.Prompts))
	return r.limit()
}

// openBeams compiles what all searches need.
func (r *runner) openBeams() error {
	s, shape := &r.search, &r.shape
	f, err := r.dev.kernel("follow.cu", "follow", fmt.Sprintf("KV_HEADS=%d", shape.KVHeads),
		fmt.Sprintf("ROW_BYTES=%d", attend.SlotBytes(shape)/(2*shape.KVHeads)))
	if err != nil {
		return err
	}
	if s.near == nil {
		if s.near, err = r.dev.c.NewEvent(false); err != nil {
			return err
		}
	}
	cfg, err := r.attendConfig()
	if err != nil {
		return err
	}
	cfg.Buffers = shape.Layers
	a, err := attend.New(r.dev.c, cfg)
	if err != nil {
		return err
	}
	s.follow, s.set = f, topk.New(r.dev.c)
	s.att = &beamAttention{tensor: tensor{r: r, a: a, now: a, buffers: shape.Layers,
		gathers: gathers{layers: shape.Layers, buffers: shape.Layers}}}
	return nil
}

// slotStep is what the scratch of searches grows by.
const slotStep = 1024

// layOut gives the rounds their slots, tables and memory.
func (r *runner) layOut() error {
	s := &r.search
	slots, depth := 0, len(s.spec.Widths)
	for i := range r.batch.Segments {
		slots += r.batch.Segments[i].Len
	}
	s.first = slices.Grow(s.first[:0], depth)[:depth]
	rows := 0
	for l := 1; l < depth; l++ {
		s.first[l] = slots
		slots += l * s.rows(l)
		rows = max(rows, s.rows(l))
		if err := r.roundTables(l); err != nil {
			return err
		}
	}
	if n := rows * r.shape.ChunkBytes(1, true); n > s.unreadBytes {
		r.dev.free(s.unread)
		s.unread, s.unreadBytes = 0, 0
		p, err := r.dev.alloc(n)
		if err != nil {
			return err
		}
		s.unread, s.unreadBytes = p, n
	}
	return s.att.a.Reserve((slots + slotStep - 1) / slotStep * slotStep)
}

// roundTables makes room for the tables of a round's rows.
func (r *runner) roundTables(level int) error {
	s := &r.search
	for len(s.hosts) <= level {
		s.hosts = append(s.hosts, nil)
	}
	n := headerBytes + bucket(s.rows(level))*rowBytes
	if h := s.hosts[level]; h != nil {
		if len(h.Bytes) >= n {
			return nil
		}
		s.hosts[level] = nil
		if err := r.dev.c.FreeHost(h); err != nil {
			return err
		}
	}
	var err error
	s.hosts[level], err = r.dev.c.AllocHost(n)
	return err
}

// prepared finds or makes the selection. Nothing may be running.
func (r *runner) prepared() (*prepared, error) {
	s := &r.search
	n := len(s.spec.Prompts)
	for i, p := range s.known {
		if p.tree == s.tree && p.requests >= n && slices.Equal(p.widths, s.spec.Widths) {
			s.known = append(slices.Delete(s.known, i, i+1), p)
			return p, nil
		}
	}
	if len(s.known) == maxPrepared {
		s.known[0].close(r.dev)
		s.known = slices.Delete(s.known, 0, 1)
	}
	p := &prepared{tree: s.tree, widths: slices.Clone(s.spec.Widths), requests: roomFor(n)}
	p.ran = make([]bool, p.requests+1)
	if err := p.open(r.dev, s); err != nil {
		p.close(r.dev)
		return nil, err
	}
	s.known = append(s.known, p)
	return p, nil
}

// roomFor rounds a number of requests up to a power of two: groups of any size are then served by few selections.
func roomFor(requests int) int { return 1 << bits.Len(uint(requests-1)) }

func (p *prepared) open(d *device, s *searching) (err error) {
	bytes, rows := 0, p.requests
	for l := range p.widths {
		bytes = max(bytes, 4*bucket(rows)*padded(p.tree.levels[l].size))
		rows = p.requests * p.widths[l]
	}
	if p.logits, err = d.alloc(bytes); err != nil {
		return err
	}
	o := topk.Options{Widths: p.widths, Requests: p.requests}
	for l := range p.widths {
		o.Logits = append(o.Logits, topk.Logits{Ptr: p.logits, Stride: padded(p.tree.levels[l].size)})
	}
	if p.q, err = s.set.NewSearch(p.tree.on, o); err != nil {
		return err
	}
	stage, err := offheap.Alloc(24 * p.requests)
	if err != nil {
		return err
	}
	defer stage.Free()
	p.beams = make([]driver.Ptr, len(p.widths))
	for l := 1; l < len(p.widths); l++ {
		if p.beams[l], err = d.alloc(24 * p.requests); err != nil {
			return err
		}
		words := offheap.Slice[driver.Ptr](stage.Bytes, 3*p.requests)
		for i := range p.requests {
			b := p.q.Beams(l, i)
			words[3*i], words[3*i+1], words[3*i+2] = b.Head, b.Parents, b.Codes
		}
		if err := d.c.Upload(p.beams[l], stage.Bytes[:24*p.requests]); err != nil {
			return err
		}
	}
	return nil
}

func (p *prepared) close(d *device) {
	if p.q != nil {
		_ = p.q.Close() // fails with a lost GPU only
	}
	if p.sets != nil {
		_ = p.sets.Close()
	}
	for _, b := range append(p.beams, p.logits, p.dead) {
		d.free(b)
	}
	_ = d.c.FreeHost(p.staged)
}

// limit says what each request may keep. What it sends goes with the stream.
func (r *runner) limit() error {
	p, spec := r.search.now, r.search.spec
	dead, filtered, limited := 0, 0, false
	for i := range spec.Prompts {
		l := &spec.Prompts[i].Limits
		for _, d := range l.Dead {
			dead += len(d)
		}
		if l.Alive != nil {
			filtered++
		}
		limited = limited || l.TopK > 0 || l.Widths != nil && !slices.Equal(l.Widths, p.widths)
	}
	limited = limited || dead > 0 || filtered > 0
	if !limited && !p.limited {
		return nil
	}
	if err := p.limitRoom(r.dev, dead, filtered); err != nil {
		return err
	}
	p.limited, r.busy = limited, true
	// Requests that are not in use are without limits, for groups to come.
	none := compute.Limits{}
	dead, filtered = 0, 0
	for i := range p.requests {
		lim := &none
		if i < len(spec.Prompts) {
			lim = &spec.Prompts[i].Limits
		}
		for l, width := range p.widths {
			to := topk.Limits{Width: width, TopK: lim.TopK}
			if lim.Widths != nil {
				to.Width = lim.Widths[l]
			}
			if lim.Dead != nil && len(lim.Dead[l]) > 0 {
				to.Dead, to.Deads = p.dead.At(4*dead), len(lim.Dead[l])
				dead += copy(offheap.Slice[uint32](p.staged.Bytes[4*dead:], to.Deads), lim.Dead[l])
			}
			if lim.Alive != nil {
				to.Alive = p.sets.Alive(filtered, l)
			}
			p.q.Limit(l, i, to)
		}
		if lim.Alive != nil {
			filtered++
		}
	}
	if dead > 0 {
		if err := r.stream.Copy(p.dead, p.staged.Ptr, 4*dead); err != nil {
			return err
		}
	}
	if err := r.filter(dead, filtered); err != nil {
		return err
	}
	return p.q.Send(r.stream)
}

// filter copies the filters of the requests that have one, behind the dead nodes, and makes the bits of the nodes.
func (r *runner) filter(dead, filtered int) error {
	if filtered == 0 {
		return nil
	}
	p, at, n := r.search.now, align8(4*dead), 0
	for i := range r.search.spec.Prompts {
		words := r.search.spec.Prompts[i].Alive
		if words == nil {
			continue
		}
		copy(offheap.Slice[uint64](p.staged.Bytes[at:], len(words)), words)
		if err := r.stream.Copy(p.sets.Items(n), p.staged.Ptr.At(at), 8*len(words)); err != nil {
			return err
		}
		at, n = at+8*len(words), n+1
	}
	return p.sets.Lift(r.stream, r.args, filtered)
}

func align8(n int) int { return (n + 7) / 8 * 8 }

// limitRoom makes room for nodes that are left out, and for filters. Nothing may be running.
func (p *prepared) limitRoom(d *device, dead, filtered int) error {
	if dead > p.room {
		d.free(p.dead)
		p.dead, p.room = 0, 0
		var err error
		if p.dead, err = d.alloc(8 * dead); err != nil {
			return err
		}
		p.room = 2 * dead
	}
	if filtered > 0 && p.sets == nil {
		var err error
		if p.sets, err = topk.NewSets(d.c, p.tree.on, p.requests); err != nil {
			return err
		}
	}
	bytes := align8(4*dead) + 8*filtered*((p.tree.Items()+63)/64)
	if bytes == 0 || p.staged != nil && bytes <= len(p.staged.Bytes) {
		return nil
	}
	err := d.c.FreeHost(p.staged)
	p.staged = nil
	if err != nil {
		return err
	}
	p.staged, err = d.c.AllocHost(2 * bytes)
	return err
}

// close gives everything back. Nothing may be running.
func (s *searching) close(d *device) {
	for _, p := range s.known {
		p.close(d)
	}
	s.known = nil
	if s.set != nil {
		_ = s.set.Close() // fails with a lost GPU only
	}
	if s.att != nil {
		s.att.close()
	}
	if s.near != nil {
		_ = s.near.Close()
	}
	s.times.close()
	for _, h := range s.hosts {
		_ = d.c.FreeHost(h)
	}
	d.free(s.unread)
}
