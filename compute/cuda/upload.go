package cuda

import (
	"errors"
	"runtime"
	"sync"

	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
)

// Weights reach the GPU through stages. While one half of a stage is copied, the cores convert rows into the other
// half.
const (
	staged    = 64 << 20 // most bytes that are converted at a time without a stage
	stageHalf = 16 << 20
	pinnedMin = 1 << 20 // smaller matrices take no stage
	fillShare = 1 << 18 // bytes that are worth a goroutine of their own
)

// stage is pinned memory for one upload at a time. The device keeps its stages for later checkpoints.
type stage struct {
	stream *driver.Stream
	halves [2]stageOf
}

// stageOf is one half of a stage.
type stageOf struct {
	host *driver.Host
	sent *driver.Event // its last copy
	busy bool          // that may be under way
}

// takeStage returns a stage that nobody uses. The caller is inside the context and MUST call leaveStage.
func (d *device) takeStage() (*stage, error) {
	d.mu.Lock()
	if n := len(d.stages); n > 0 {
		s := d.stages[n-1]
		d.stages = d.stages[:n-1]
		d.mu.Unlock()
		return s, nil
	}
	d.mu.Unlock()
	s := &stage{}
	var err error
	if s.stream, err = d.c.NewStream(); err != nil {
		return nil, err
	}
	for i := range s.halves {
		h := &s.halves[i]
		if h.host, err = d.c.AllocHost(stageHalf); err == nil {
			h.sent, err = d.c.NewEvent(false)
		}
		if err != nil {
			return nil, errors.Join(err, s.close(d.c))
		}
	}
	return s, nil
}

// leaveStage waits for what was started and gives a stage back.
func (d *device) leaveStage(s *stage) error {
	err := s.stream.Sync()
	s.halves[0].busy, s.halves[1].busy = false, false
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stages = append(d.stages, s)
	return err
}

func (s *stage) close(c *driver.Context) error {
	err := s.stream.Close()
	for i := range s.halves {
		if h := &s.halves[i]; h.sent != nil {
			err = errors.Join(err, h.sent.Close())
		}
		err = errors.Join(err, c.FreeHost(s.halves[i].host))
	}
	return err
}

// upload makes a matrix of rows of width bytes on the GPU. Calls of row, which may run side by side, fill one row
// each. A row is zero before.
func (d *device) upload(rows, width int, row func(i int, to []byte)) (driver.Ptr, error) {
	defer d.c.Leave()
	if err := d.c.Enter(); err != nil {
		return 0, err
	}
	p, err := d.alloc(rows * width)
	if err != nil {
		return 0, err
	}
	if err := d.send(p, rows, width, row); err != nil {
		d.free(p)
		return 0, err
	}
	return p, nil
}

// send fills a matrix on the GPU. Without pinned memory to spare it copies from ordinary memory.
func (d *device) send(p driver.Ptr, rows, width int, row func(i int, to []byte)) error {
	plain := func(from int, bytes []byte) error { return d.c.Upload(p.At(from*width), bytes) }
	if rows*width < pinnedMin || width > stageHalf {
		return inSteps(rows, width, row, plain)
	}
	s, err := d.takeStage()
	if driver.OutOfMemory(err) {
		return inSteps(rows, width, row, plain)
	}
	if err != nil {
		return err
	}
	return errors.Join(s.send(p, rows, width, row), d.leaveStage(s))
}

func (s *stage) send(p driver.Ptr, rows, width int, row func(i int, to []byte)) error {
	step := min(rows, stageHalf/width)
	for from, i := 0, 0; from < rows; from, i = from+step, 1-i {
		h := &s.halves[i]
		if h.busy {
			if err := h.sent.Sync(); err != nil {
				return err
			}
		}
		bytes := h.host.Bytes[:min(step, rows-from)*width]
		fillRows(from, width, bytes, row)
		h.busy = true
		if err := s.stream.Copy(p.At(from*width), h.host.Ptr, len(bytes)); err != nil {
			return err
		}
		if err := h.sent.Record(s.stream); err != nil {
			return err
		}
	}
	return nil
}

// fillRows fills bytes with rows of width bytes from a first one on, on all cores if there are many bytes.
func fillRows(from, width int, bytes []byte, row func(i int, to []byte)) {
	n := len(bytes) / width
	fill := func(first, end int) {
		clear(bytes[first*width : end*width])
		for i := first; i < end; i++ {
			row(from+i, bytes[i*width:(i+1)*width])
		}
	}
	parts := min(runtime.GOMAXPROCS(0), len(bytes)/fillShare, n)
	if parts < 2 {
		fill(0, n)
		return
	}
	var wg sync.WaitGroup
	for k := range parts {
		wg.Go(func() { fill(k*n/parts, (k+1)*n/parts) })
	}
	wg.Wait()
}

// rowsOf returns how many rows of width bytes are staged together.
func rowsOf(rows, width int) int { return min(rows, max(1, staged/width)) }

// inSteps passes rows of width bytes to put, some at a time. Calls of row, which may run side by side, fill one row
// each. A row is zero before.
func inSteps(rows, width int, row func(i int, to []byte), put func(from int, bytes []byte) error) error {
	step := rowsOf(rows, width)
	stage, err := offheap.Alloc(step * width)
	if err != nil {
		return err
	}
	defer stage.Free()
	for from := 0; from < rows; from += step {
		bytes := stage.Bytes[:min(step, rows-from)*width]
		fillRows(from, width, bytes, row)
		if err := put(from, bytes); err != nil {
			return err
		}
	}
	return nil
}
