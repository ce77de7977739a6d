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
	staged  *driver.Host // these on their way
	limited bool         // some are left out
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
	f, err := r.dev.kernel("follow.cu", "follow", fmt.Sprintf("KV_HEADS=%d", shape.KVHeads), fmt.Sprintf("ROW_BYTES=%d", attend.SlotBytes(shape)/(2*shape.KVHeads)))
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
	for _, b := range append(p.beams, p.logits, p.dead) {
		d.free(b)
	}
	_ = d.c.FreeHost(p.staged)
}

// limit says which nodes are left out. What it sends goes with the stream.
func (r *runner) limit() error {
	p, prompts, n := r.search.now, r.search.spec.Prompts, 0
	for i := range prompts {
		for _, dead := range prompts[i].Dead {
			n += len(dead)
		}
	}
	if n == 0 && !p.limited {
		return nil
	}
	if err := p.deadRoom(r.dev, n); err != nil {
		return err
	}
	at := 0
	for i := range p.requests { // those that are not in use are without limits, for groups to come
		for l := range p.widths {
			var dead []uint32
			if i < len(prompts) && prompts[i].Dead != nil {
				dead = prompts[i].Dead[l]
			}
			if len(dead) > 0 {
				copy(offheap.Slice[uint32](p.staged.Bytes[4*at:], len(dead)), dead)
			}
			p.q.Limit(l, i, 0, p.dead.At(4*at), len(dead))
			at += len(dead)
		}
	}
	p.limited, r.busy = n > 0, true
	if n > 0 {
		if err := r.stream.Copy(p.dead, p.staged.Ptr, 4*n); err != nil {
			return err
		}
	}
	return p.q.Send(r.stream)
}

// deadRoom makes room for n nodes that are left out.
func (p *prepared) deadRoom(d *device, n int) error {
	if n == 0 || p.staged != nil && 4*n <= len(p.staged.Bytes) {
		return nil
	}
	d.free(p.dead)
	p.dead = 0
	err := d.c.FreeHost(p.staged)
	p.staged = nil
	if err != nil {
		return err
	}
	if p.dead, err = d.alloc(8 * n); err != nil {
		return err
	}
	p.staged, err = d.c.AllocHost(8 * n)
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
	for _, h := range s.hosts {
		_ = d.c.FreeHost(h)
	}
	d.free(s.unread)
}
