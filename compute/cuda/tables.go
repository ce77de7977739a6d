package cuda

import (
	"math"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
)

// tables are what kernels read of a batch: its true sizes, tokens and positions, and where K and V go.
// They are written to pinned memory and copied to the GPU at the start of a batch. Where each one lies
// depends on the batch's bucket only, as graphs need it.
type tables struct {
	host *driver.Host
	dev  driver.Ptr
	rows int // bucket of the batch

	pointwise *compute.Pointwise // of the shape

	spans     []span
	spansHost *driver.Host
	spansDev  driver.Ptr
	spansRoom int // bytes
}

// header is the beginning of the tables.
type header struct {
	rows, kept int32
	spans      uint64
}

const headerBytes = 256

// home is where a row's K and V go, as home.cuh has it.
type home struct {
	chunk  uint64
	tokens int32 // negative in a chunk of one layer
	token  int32
}

// span is a run of keys that lie together, as home.cuh has it.
type span struct {
	chunk  uint64
	tokens int32
	count  int32
	start  int32
	row    int32
	cached int32
	_      int32
}

// sight is what a row sees, as attend_direct.cu has it.
type sight struct {
	spans, keys int32
	from        int32
	scale       float32
}

const rowBytes = int(unsafe.Sizeof(home{})+unsafe.Sizeof(sight{})) + 3*4

func (t *tables) open(d *device, rows int) (err error) {
	if t.host, err = d.c.AllocHost(headerBytes + rows*rowBytes); err != nil {
		return err
	}
	t.dev, err = d.alloc(headerBytes + rows*rowBytes)
	return err
}

func (t *tables) close(d *device) {
	d.free(t.dev)
	d.free(t.spansDev)
	_ = d.c.FreeHost(t.host) // fails with a lost GPU only
	_ = d.c.FreeHost(t.spansHost)
}

// Offsets of the tables, given the bucket.
func (t *tables) homesAt() int     { return headerBytes }
func (t *tables) sightsAt() int    { return t.homesAt() + 16*t.rows }
func (t *tables) tokensAt() int    { return t.sightsAt() + 16*t.rows }
func (t *tables) positionsAt() int { return t.tokensAt() + 4*t.rows }
func (t *tables) keepAt() int      { return t.positionsAt() + 4*t.rows }
func (t *tables) end() int         { return t.keepAt() + 4*t.rows }

// Addresses of the tables on the GPU.
func (t *tables) trueRows() driver.Ptr  { return t.dev }
func (t *tables) keptRows() driver.Ptr  { return t.dev.At(4) }
func (t *tables) spanTable() driver.Ptr { return t.dev.At(8) }
func (t *tables) homes() driver.Ptr     { return t.dev.At(t.homesAt()) }
func (t *tables) sights() driver.Ptr    { return t.dev.At(t.sightsAt()) }
func (t *tables) tokens() driver.Ptr    { return t.dev.At(t.tokensAt()) }
func (t *tables) positions() driver.Ptr { return t.dev.At(t.positionsAt()) }
func (t *tables) kept() driver.Ptr      { return t.dev.At(t.keepAt()) }

// fill writes the tables of a batch, or of those of its rows that are left. keep lists the rows of these that go on
// after Keep. Nothing of what was written before may still be on its way. Where the tables of the same rows were filled
// last, again, only these are written.
func (t *tables) fill(d *device, b *compute.Batch, left, keep []int32, sights, again bool) error {
	rows := len(b.Tokens)
	if left != nil {
		rows = len(left)
	}
	t.rows = bucket(rows)
	copy(offheap.Slice[int32](t.host.Bytes[t.keepAt():], t.rows), keep)
	h := &offheap.Slice[header](t.host.Bytes, 1)[0]
	if again {
		h.kept = int32(len(keep))
		return nil
	}
	positions := offheap.Slice[int32](t.host.Bytes[t.positionsAt():], t.rows)
	if left == nil {
		copy(offheap.Slice[int32](t.host.Bytes[t.tokensAt():], t.rows), b.Tokens)
		copy(positions, b.Positions)
	}
	for i, row := range left {
		positions[i] = b.Positions[row]
	}
	t.locate(b, left)
	t.spans = t.spans[:0]
	if sights {
		t.look(b, left)
		if err := t.spanRoom(d, len(t.spans)*int(unsafe.Sizeof(span{}))); err != nil {
			return err
		}
		if len(t.spans) > 0 {
			copy(offheap.Slice[span](t.spansHost.Bytes, len(t.spans)), t.spans)
		}
	}
	*h = header{rows: int32(rows), kept: int32(len(keep)), spans: uint64(t.spansDev)}
	return nil
}

// upload puts the copies to the GPU into the stream.
func (t *tables) upload(s *driver.Stream) error {
	if err := s.Copy(t.dev, t.host.Ptr, t.end()); err != nil || len(t.spans) == 0 {
		return err
	}
	return s.Copy(t.spansDev, t.spansHost.Ptr, len(t.spans)*int(unsafe.Sizeof(span{})))
}

// spanRoom makes room for n bytes of spans.
func (t *tables) spanRoom(d *device, n int) error {
	if n <= t.spansRoom {
		return nil
	}
	n = max(2*t.spansRoom, n, 64<<10)
	d.free(t.spansDev)
	if err := d.c.FreeHost(t.spansHost); err != nil {
		return err
	}
	t.spansDev, t.spansHost, t.spansRoom = 0, nil, 0
	host, err := d.c.AllocHost(n)
	if err != nil {
		return err
	}
	t.spansHost = host
	if t.spansDev, err = d.alloc(n); err != nil {
		return err
	}
	t.spansRoom = n
	return nil
}

// room is a chunk's tokens as kernels take them.
func room(c *compute.Chunk) int32 {
	if c.Transient {
		return -int32(c.Tokens)
	}
	return int32(c.Tokens)
}

// some are rows of a batch, ascending; nil: all. They are asked for in order.
type some []int32

// next reports whether a row is among them, and goes on to the next if so.
func (s *some) next(row int) bool {
	if *s == nil {
		return true
	}
	if len(*s) == 0 || int((*s)[0]) != row {
		return false
	}
	*s = (*s)[1:]
	return true
}

// locate finds where the K and V of every row go.
func (t *tables) locate(b *compute.Batch, left some) {
	homes := offheap.Slice[home](t.host.Bytes[t.homesAt():], t.rows)
	row := 0
	for i := range b.Segments {
		s := &b.Segments[i]
		at := 0 // first token of the chunk
		for c := range s.Chunks {
			ch := &s.Chunks[c]
			h := home{chunk: ch.Addr, tokens: room(ch)}
			for k := max(at, s.Cached); k < min(at+ch.Tokens, s.Len); k++ {
				if left.next(s.First + k - s.Cached) {
					h.token = int32(k - at)
					homes[row] = h
					row++
				}
			}
			at += ch.Tokens
		}
	}
}

// look lists the keys that every row sees: all of the segments that its own one sees, in order, and its
// own one up to itself. Rows of a segment share the list and differ in how much of it they see.
func (t *tables) look(b *compute.Batch, left some) {
	sights := offheap.Slice[sight](t.host.Bytes[t.sightsAt():], t.rows)
	row := 0
	for i := range b.Segments {
		s := &b.Segments[i]
		if s.Rows() == 0 {
			continue
		}
		first, seen := int32(len(t.spans)), 0
		for _, j := range s.Sees {
			t.add(&b.Segments[j])
			seen += b.Segments[j].Len
		}
		t.add(s)
		for k := s.Cached; k < s.Len; k++ {
			if !left.next(s.First + k - s.Cached) {
				continue
			}
			sights[row] = sight{spans: first, keys: int32(seen + k + 1)}
			if t.pointwise != nil {
				t.lookPointwise(&sights[row], s, k, seen)
			}
			row++
		}
	}
}

// lookPointwise adds what rows of HSTU see: context rows all of their segment, others nothing before the
// window.
func (t *tables) lookPointwise(to *sight, s *compute.Segment, token, seen int) {
	p, position := t.pointwise, s.Start+token
	to.scale, to.from = p.ScaleOf(s), math.MinInt32
	switch {
	case position < p.Context:
		to.keys = int32(seen + s.Len)
	case p.Window > 0:
		to.from = int32(p.Place(position) - p.Window)
	}
}

// add lists all tokens of a segment.
func (t *tables) add(s *compute.Segment) {
	left := s.Len
	for c := range s.Chunks {
		n := min(left, s.Chunks[c].Tokens)
		if n == 0 {
			return
		}
		at := s.Len - left
		t.spans = append(t.spans, span{chunk: s.Chunks[c].Addr, tokens: room(&s.Chunks[c]), count: int32(n),
			start: int32(s.Start + at),
			row:   int32(s.First + at - s.Cached), cached: int32(s.Cached - at)})
		left -= n
	}
}
