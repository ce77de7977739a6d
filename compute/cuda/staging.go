package cuda

import (
	"errors"
	"fmt"

	"grebe/compute"
	"grebe/compute/cuda/driver"
)

// staging brings cached K and V that lie in the host's memory to the GPU, beside what a runner computes: those of
// a whole batch by a few batched copies in a stream of their own, part by part in the order of layers. A
// layer's attention waits for the part that it is in, and gathers from there as if it had always been there.
//
// To start a copy takes the host about a microsecond. So many chunks come as one part, behind the first few
// layers: those are gathered over the bus from where the chunks lie, while the host starts the copies. The bus
// has room for one of both at a time, so that the copies wait for that.
type staging struct {
	dev    *device
	shape  *compute.Shape
	few    []part // in which few chunks come
	many   []part
	stream *driver.Stream
	done   []*driver.Event // by part: it is on the GPU
	placed *driver.Event   // layers that are gathered in place are on the GPU

	room   driver.Ptr
	bytes  int
	used   int
	chunks []moving
	next   int  // of chunks: not located yet
	busy   bool // copies were started that nobody may have waited for
	copies driver.Copies
}

// moving is a chunk on its way.
type moving struct {
	from, to driver.Ptr
	layer    int // bytes
}

const (
	fewChunks = 64
	// Layers of few chunks' parts, of which the last has all that are left; and those of many chunks that are
	// gathered in place.
	firstPart, secondPart = 2, 6
	placeLayers           = 3
	stagedParts           = 3
	// maxStaged bounds the memory that is taken. Chunks beyond it are used in place.
	maxStaged = 1 << 30
	stagedTo  = 256 // bytes that chunks are aligned to
)

// resident is the parts of a batch all of whose cached KV is in the GPU's memory, or is read in place.
var resident = []part{{0, onDevice}}

func newStaging(r *runner, buffers int) (*staging, error) {
	s := &staging{dev: r.dev, shape: &r.shape,
		few:  []part{{0, 0}, {firstPart, 1}, {firstPart + secondPart, 2}},
		many: []part{{0, inPlace}, {min(placeLayers, buffers), 0}}}
	var err error
	if s.stream, err = r.dev.c.NewStream(); err != nil {
		return s, err
	}
	if s.placed, err = r.dev.c.NewEvent(false); err != nil {
		return s, err
	}
	for range stagedParts {
		e, err := r.dev.c.NewEvent(false)
		if err != nil {
			return s, err
		}
		s.done = append(s.done, e)
	}
	return s, nil
}

// parts returns those of the batch.
func (s *staging) parts() []part {
	switch {
	case len(s.chunks) == 0:
		return resident
	case s.crowded():
		return s.many
	}
	return s.few
}

// close gives everything back; it fails with a lost GPU only.
func (s *staging) close() {
	if s.stream != nil {
		_ = errors.Join(s.stream.Sync(), s.stream.Close())
	}
	if s.placed != nil {
		_ = s.placed.Close()
	}
	for _, e := range s.done {
		_ = e.Close()
	}
	s.dev.free(s.room)
}

// far reports whether a chunk's cached tokens lie in the host's memory.
func far(c *compute.Chunk) bool { return c.Bytes != nil && !c.Transient }

func (s *staging) sizeOf(c *compute.Chunk) int {
	return (s.shape.ChunkBytes(c.Tokens, false) + stagedTo - 1) &^ (stagedTo - 1)
}

// begin finds the chunks of a batch that are to be fetched, makes room for them and starts the copies of few.
// Nothing of an earlier batch may be under way.
func (s *staging) begin(b *compute.Batch) error {
	s.used, s.next, s.chunks = 0, 0, s.chunks[:0]
	if s.dev.inPlace.Load() {
		return nil
	}
	for i := range b.Segments {
		g := &b.Segments[i]
		for c, at := 0, 0; at < g.Cached; c++ {
			if far(&g.Chunks[c]) {
				s.add(&g.Chunks[c])
			}
			at += g.Chunks[c].Tokens
		}
	}
	if err := s.grow(); err != nil || len(s.chunks) == 0 {
		return err
	}
	for i := range s.chunks {
		s.chunks[i].to += s.room
	}
	if s.crowded() {
		return nil
	}
	return s.start()
}

// idle waits for the copies.
func (s *staging) idle() error {
	if err := s.stream.Sync(); err != nil {
		return err
	}
	s.busy = false
	return nil
}

// again has locate find the chunks of the same batch once more.
func (s *staging) again() { s.next = 0 }

// crowded reports whether the batch has many chunks.
func (s *staging) crowded() bool { return len(s.chunks) > fewChunks }

// follow starts the copies of many chunks behind what is in the stream: the layers gathered in place.
func (s *staging) follow(behind *driver.Stream) error {
	if err := s.placed.Record(behind); err != nil {
		return err
	}
	if err := s.stream.Wait(s.placed); err != nil {
		return err
	}
	return s.start()
}

// add takes a chunk up, at an offset for now.
func (s *staging) add(c *compute.Chunk) {
	size := s.sizeOf(c)
	if s.used+size > maxStaged {
		return
	}
	s.chunks = append(s.chunks, moving{driver.Ptr(c.Addr), driver.Ptr(s.used),
		s.shape.ChunkBytes(c.Tokens, false) / s.shape.Layers})
	s.used += size
}

// grow makes room for what is used. Where there is no memory, all is used in place.
func (s *staging) grow() error {
	if s.used <= s.bytes {
		return nil
	}
	if s.busy { // with copies to the room that there is
		if err := s.idle(); err != nil {
			return err
		}
	}
	s.dev.free(s.room)
	s.room, s.bytes = 0, 0
	need := min(maxStaged, s.used+s.used/4)
	room, err := s.dev.alloc(need)
	if driver.OutOfMemory(err) {
		s.chunks = s.chunks[:0]
		return nil
	}
	if err != nil {
		return fmt.Errorf("room for %d bytes of the host's: %w", need, err)
	}
	s.room, s.bytes = room, need
	return nil
}

// locate says where a chunk is gathered from, as attend.Config has it: the chunks come in the order of begin.
func (s *staging) locate(c *compute.Chunk) uint64 {
	if s.next < len(s.chunks) && s.chunks[s.next].from == driver.Ptr(c.Addr) {
		s.next++
		return uint64(s.chunks[s.next-1].to)
	}
	return c.Addr
}

// start begins the copies, part by part.
func (s *staging) start() error {
	if err := s.dev.memory.await(s.stream); err != nil {
		return err
	}
	s.busy = true
	all := s.parts()
	for i, p := range all {
		if p.source < 0 || p.first >= s.shape.Layers {
			continue
		}
		end := s.shape.Layers
		if i+1 < len(all) {
			end = min(end, all[i+1].first)
		}
		s.copies.Reset()
		for k := range s.chunks {
			c := &s.chunks[k]
			s.copies.Add(c.to.At(p.first*c.layer), c.from.At(p.first*c.layer), (end-p.first)*c.layer)
		}
		if err := s.stream.CopyAll(&s.copies); err != nil {
			return err
		}
		if err := s.done[p.source].Record(s.stream); err != nil {
			return err
		}
	}
	return nil
}
