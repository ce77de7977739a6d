package attend

import (
	"errors"
	"fmt"
	"unsafe"

	"grebe/compute/cuda/driver"
)

// Fraction are the bits behind the point of what Receive adds up.
const Fraction = 32

// receiver is what Receive needs, made when it is first called.
type receiver struct {
	run    *driver.Function
	words  []int32
	pinned *driver.Host
	list   driver.Ptr
	sums   driver.Ptr
	slots  int // that sums has room for
}

// Receive adds up what keys received in a layer whose attention Run has just computed, from the batch of the last
// Begin: probabilities of all rows and query heads that see a key, in fixed point. It returns where the sums are, a
// uint64 for each slot. Nothing else of this batch's lists may follow but Begin.
func (a *Attention) Receive(s *driver.Stream, layer int, queries driver.Ptr, queryStride int) (driver.Ptr, error) {
	r := &a.receiver
	if err := a.prepareReceive(); err != nil {
		return 0, fmt.Errorf("attend: %w", err)
	}
	blocks := a.plan.cutSingly(a.cfg.Shape.KVHeads)
	list := a.plan.encode(r.words[:0])
	if len(list) > len(r.words) {
		if err := a.growReceiver(2 * len(list)); err != nil {
			return 0, fmt.Errorf("attend: %w", err)
		}
		copy(r.words, list)
	}
	if err := s.Copy(r.list, r.pinned.Ptr, len(list)*wordBytes); err != nil {
		return 0, fmt.Errorf("attend: %w", err)
	}
	if err := s.Fill(r.sums, 0, int(a.plan.slots)*8); err != nil {
		return 0, fmt.Errorf("attend: %w", err)
	}
	l := driver.Launch{Grid: [3]int{blocks}, Block: [3]int{256}, Shared: tileRows * (a.rowBytes() + 16)}
	return r.sums, r.run.Launch(s, l, a.args.Reset().Ptr(r.sums).Ptr(r.list).Float(a.scale).Int(layer%a.cfg.Buffers).
		Ptr(a.logs).Ptr(queries).Int(queryStride).Ptr(a.scratch).Int(a.cfg.Slots))
}

// Slots returns, for each row of the last Begin's batch, where its key is, and how many slots there are. It is valid
// until the next Begin.
func (a *Attention) Slots() (rows []int32, all int) { return a.plan.slot, int(a.plan.slots) }

func (a *Attention) prepareReceive() error {
	r := &a.receiver
	if r.run == nil {
		s := &a.cfg.Shape
		var err error
		if r.run, err = a.function("received.cu", "received", fmt.Sprintf("HEADS=%d", s.Heads),
			fmt.Sprintf("KV_HEADS=%d", s.KVHeads), fmt.Sprintf("HEAD_DIM=%d", s.HeadDim)); err != nil {
			return err
		}
		if err := a.growReceiver(len(a.words)); err != nil {
			return err
		}
	}
	if slots := int(a.plan.slots); slots > r.slots {
		err := a.c.Free(r.sums)
		r.sums, r.slots = 0, 0
		if err != nil {
			return err
		}
		if r.sums, err = a.c.Alloc((slots + slots/4) * 8); err != nil {
			return err
		}
		r.slots = slots + slots/4
	}
	return nil
}

// growReceiver makes room for a list of words words.
func (a *Attention) growReceiver(words int) error {
	r := &a.receiver
	if err := a.c.Sync(); err != nil {
		return err
	}
	err := errors.Join(a.c.Free(r.list), a.c.FreeHost(r.pinned))
	r.list, r.pinned, r.words = 0, nil, nil
	if err != nil {
		return err
	}
	if r.list, err = a.c.Alloc(words * wordBytes); err != nil {
		return err
	}
	if r.pinned, err = a.c.AllocHost(words * wordBytes); err != nil {
		return err
	}
	r.words = unsafe.Slice((*int32)(unsafe.Pointer(&r.pinned.Bytes[0])), words)
	return nil
}

func (r *receiver) close(c *driver.Context) error {
	return errors.Join(c.Free(r.sums), c.Free(r.list), c.FreeHost(r.pinned))
}
