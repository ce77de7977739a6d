package cuda

import (
	"errors"
	"fmt"

	"grebe/compute"
	"grebe/compute/cuda/driver"
)

// fetching brings chunks that lie in the host's memory to the GPU ahead of their being placed: by copies in a stream of
// its own, so that those of later layers are under way while earlier ones are placed and computed. A kernel that reads
// over the bus would keep multiprocessors from computing. Chunks of which little is wanted are read in place all the
// same.
type fetching struct {
	stream *driver.Stream
	done   []*driver.Event // by part of the layers: it is on the GPU
	room   driver.Ptr
	bytes  int
	chunks []wanted
	last   int // of chunks: looked up last
	copies driver.Copies
	active bool // something was fetched for the parts that are placed next
}

// wanted is a chunk of the host's.
type wanted struct {
	moving
	size, tokens, used int
}

func (f *fetching) open(r *runner) (err error) {
	if f.stream, err = r.dev.c.NewStream(); err != nil {
		return err
	}
	for range placedParts {
		e, err := r.dev.c.NewEvent(false)
		if err != nil {
			return err
		}
		f.done = append(f.done, e)
	}
	return nil
}

// choose finds the chunks that are fetched, and makes room. Where some are under way already (free is false), or there
// is no memory, all are read in place.
func (f *fetching) choose(r *runner, parts []compute.Part, free bool) error {
	f.chunks, f.last, f.active = f.chunks[:0], 0, false
	if !free {
		return nil
	}
	for i := range parts {
		if from := &parts[i].From; far(from) {
			f.want(r, from, parts[i].Tokens)
		}
	}
	total := 0
	for i := range f.chunks {
		w := &f.chunks[i]
		if w.to = 0; 2*w.used >= w.tokens && total+w.size <= maxStaged {
			w.to = driver.Ptr(total) + 1 // an offset for now; 0: it is not fetched
			total += w.size
		}
	}
	if total == 0 {
		return nil
	}
	if err := f.grow(r.dev, total); err != nil || f.room == 0 {
		return err
	}
	f.active = true
	for i := range f.chunks {
		if w := &f.chunks[i]; w.to > 0 {
			w.to += f.room - 1
		}
	}
	return nil
}

// want notes that so many tokens of a chunk are.
func (f *fetching) want(r *runner, c *compute.Chunk, tokens int) {
	i := f.find(c)
	if i < 0 {
		i = len(f.chunks)
		f.last = i
		size := r.shape.ChunkBytes(c.Tokens, false)
		f.chunks = append(f.chunks, wanted{moving: moving{from: driver.Ptr(c.Addr), layer: size / r.shape.Layers},
			size: (size + stagedTo - 1) &^ (stagedTo - 1), tokens: c.Tokens})
	}
	f.chunks[i].used += tokens
}

// find returns which of chunks one is, negative: none. Parts of a chunk come together.
func (f *fetching) find(c *compute.Chunk) int {
	if f.last < len(f.chunks) && f.chunks[f.last].from == driver.Ptr(c.Addr) {
		return f.last
	}
	for i := range f.chunks {
		if f.chunks[i].from == driver.Ptr(c.Addr) {
			f.last = i
			return i
		}
	}
	return -1
}

// grow makes room; there is none where the GPU has no memory.
func (f *fetching) grow(d *device, need int) error {
	if need <= f.bytes {
		return nil
	}
	d.free(f.room)
	f.room, f.bytes = 0, 0
	need = min(maxStaged, need+need/4)
	room, err := d.alloc(need)
	if driver.OutOfMemory(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("room for %d bytes of the host's: %w", need, err)
	}
	f.room, f.bytes = room, need
	return nil
}

// locate says where a chunk is read from.
func (f *fetching) locate(c *compute.Chunk) uint64 {
	if !f.active || !far(c) {
		return c.Addr
	}
	if i := f.find(c); i >= 0 && f.chunks[i].to != 0 {
		return uint64(f.chunks[i].to)
	}
	return c.Addr
}

// start begins the copies of some layers, a part of them.
func (f *fetching) start(r *runner, part, first, end int) error {
	if !f.active {
		return nil
	}
	f.copies.Reset()
	for i := range f.chunks {
		if w := &f.chunks[i]; w.to != 0 {
			f.copies.Add(w.to.At(first*w.layer), w.from.At(first*w.layer), (end-first)*w.layer)
		}
	}
	if err := r.dev.memory.await(f.stream); err != nil {
		return err
	}
	if err := f.stream.CopyAll(&f.copies); err != nil {
		return err
	}
	return f.done[part].Record(f.stream)
}

// await makes the stream in which chunks are placed wait for those of a part of the layers.
func (f *fetching) await(s *driver.Stream, part int) error {
	if !f.active {
		return nil
	}
	return s.Wait(f.done[part])
}

// close gives everything back; it fails with a lost GPU only.
func (f *fetching) close(d *device) {
	if f.stream != nil {
		_ = errors.Join(f.stream.Sync(), f.stream.Close())
	}
	for _, e := range f.done {
		_ = e.Close()
	}
	d.free(f.room)
}
