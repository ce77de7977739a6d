package tiers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"grebe/compute"
	"grebe/engine"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/plan"
	"grebe/pool"
)

type engineModel = engine.Model

const (
	itemTokens = 6
	userTokens = 24
	together   = 8       // items that are computed by one job
	deviceRoom = 16      // items that fit the device beside what is in the host's memory
	page       = 4 << 10 // of pools
)

// stack is a device, a model, an engine and a cache. Close releases it in reverse order.
type stack struct {
	device  compute.Device
	model   opened
	engine  *engine.Engine
	store   *kv.Store
	closers []func() error
}

func (s *stack) close() error {
	var err error
	for _, f := range slices.Backward(s.closers) {
		err = errors.Join(err, f())
	}
	s.closers = nil
	return err
}

// rows is the most that a batch computes: a prompt with nothing cached.
func (o *Options) rows() int { return slices.Max(o.Items)*itemTokens + userTokens }

// scratchBytes is what attention's scratch for some layers of a shape takes. It has bf16 whatever chunks have, and rows
// in multiples of 128.
func (o *Options) scratchBytes(s *compute.Shape, layers int) int {
	rows := (o.rows() + 127) / 128 * 128
	return layers * rows * 2 * s.KVHeads * s.HeadDim * compute.BF16.Size()
}

// open opens a device with scratch of so many bytes, 0 for its own choice, and a model on it.
func (o *Options) open(dir, name string, scratch int) (s *stack, err error) {
	s = &stack{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.device, err = o.Open(scratch); err != nil {
		return s, err
	}
	s.closers = append(s.closers, s.device.Close)
	if s.model, err = openModel(dir, name, s.device); err != nil {
		return s, err
	}
	s.closers = append(s.closers, s.model.Close)
	return s, nil
}

// serve opens an engine whose cache has room for so many items in the device's memory and in the host's, 0 for none,
// and may write them to a disk. end closes it.
func (s *stack) serve(o *Options, near, far int, dir string) (end func() error, err error) {
	first := len(s.closers)
	end = func() error {
		part := stack{closers: s.closers[first:]}
		s.closers = s.closers[:first]
		return part.close()
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, end())
		}
	}()
	shape := s.model.Shape()
	size := int64((shape.ChunkBytes(itemTokens, false) + page - 1) / page * page)
	top, err := pool.Over(s.device.Memory(), int64(near)*size, page)
	if err != nil {
		return end, err
	}
	s.closers = append(s.closers, top.Close)
	s.store = kv.New(shape, top)
	if far > 0 {
		below, err := pool.Over(s.device.Memory().Host(), int64(far)*size, page)
		if err != nil {
			return end, err
		}
		s.closers = append(s.closers, below.Close)
		if err := s.store.SetHost(below); err != nil {
			return end, err
		}
	}
	if err := s.store.SetPolicy("lru"); err != nil {
		return end, err
	}
	if dir != "" {
		d, err := disk.Open(dir, disk.Options{Budget: max(64<<20, 4*int64(far)*size)})
		if err != nil {
			return end, err
		}
		s.closers = append(s.closers, d.Close)
		s.store.SetDisk(d)
	}
	store := s.store
	s.closers = append(s.closers, func() error { store.Close(); return nil })
	if s.engine, err = engine.New(s.model, s.device, engine.Options{
		Cache: s.store, MaxTokens: o.rows(), Now: time.Now}); err != nil {
		return end, err
	}
	s.closers = append(s.closers, s.engine.Close)
	return end, nil
}

// prompt is a ranking's plan, items first: items see themselves, and the user all of them.
func (s *stack) prompt(items int) *plan.Plan {
	p := &plan.Plan{}
	var sees []int32
	for i := range items {
		p.Segments = append(p.Segments, plan.Segment{Kind: plan.Item, Tokens: s.tokens(i, itemTokens)})
		sees = append(sees, int32(i))
	}
	p.Segments = append(p.Segments, plan.Segment{Kind: plan.User, Tokens: s.tokens(-1, userTokens), Start: itemTokens,
		Sees: sees})
	return p
}

// tokens are those of an item, or of the user.
func (s *stack) tokens(item, n int) []int32 {
	r := rand.New(rand.NewPCG(9, uint64(item)))
	// of tokens of an item, where the model takes events; the last stands for a candidate
	kinds := s.model.Vocab() / vocabulary
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(r.IntN(vocabulary)*kinds + r.IntN(max(1, kinds-1)))
	}
	return out
}

// ask runs a prompt. It wants logits of all tokens, or of a model of events, which has none, its last hidden state.
func (s *stack) ask(ctx context.Context, items int, cached []*kv.Entry) ([]float32, error) {
	j := &engine.Job{Plan: s.prompt(items)}
	if cached != nil {
		j.Segments = engine.From(cached...)
	}
	if s.model.Shape().Pointwise != nil {
		j.Hidden = []int{items}
	} else {
		ids := make([]int32, vocabulary)
		for i := range ids {
			ids[i] = int32(i)
		}
		j.Want = []engine.Want{{Segment: items, IDs: ids}}
	}
	r, err := s.engine.Do(ctx, j)
	switch {
	case err != nil:
		return nil, err
	case cached != nil && r.Cached != items*itemTokens:
		return nil, fmt.Errorf("%d tokens of %d items were cached, want all %d", r.Cached, items, items*itemTokens)
	case len(r.Hidden) > 0:
		return r.Hidden[0], nil
	}
	return r.Logits[0], nil
}

// recompute asks for all prompts with nothing cached, and says what shape the model has.
func (o *Options) recompute(ctx context.Context, dir,
	name string) (want map[int][]float32, shape compute.Shape, err error) {
	s, err := o.open(dir, name, 0)
	if err != nil {
		return nil, shape, err
	}
	_, err = s.serve(o, deviceRoom, 0, "")
	want = map[int][]float32{}
	for _, n := range o.Items {
		if err == nil {
			want[n], err = s.ask(ctx, n, nil)
		}
	}
	shape = s.model.Shape()
	return want, shape, errors.Join(err, s.close())
}

// scratch checks all tiers on a device with scratch of some layers.
func (o *Options) scratch(ctx context.Context, dir, name string, layers, bytes int,
	want map[int][]float32) (cells []Cell, err error) {
	s, err := o.open(dir, name, bytes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	most := slices.Max(o.Items)
	kept := filepath.Join(dir, fmt.Sprint("disk-", layers))
	defer os.RemoveAll(kept)
	for _, tier := range Tiers {
		near, far, folder := deviceRoom, most+2*deviceRoom, kept
		if tier == plan.Device {
			near, far, folder = most+deviceRoom, 0, ""
		}
		end, err := s.serve(o, near, far, folder)
		if err != nil {
			return cells, err
		}
		found, err := o.tier(ctx, s, tier, want)
		for i := range found {
			found[i].Family, found[i].Scratch = name, layers
		}
		if cells, err = append(cells, found...), errors.Join(err, end()); err != nil {
			return cells, fmt.Errorf("KV on %s: %w", tier, err)
		}
	}
	return cells, nil
}

// tier checks one tier of a stack that serves. The disk's was written by the host's.
func (o *Options) tier(ctx context.Context, s *stack, tier plan.Tier, want map[int][]float32) ([]Cell, error) {
	most := slices.Max(o.Items)
	if tier == plan.Disk {
		for i := range most {
			if s.store.Fetch(ctx, key(i)) == plan.Missing {
				return nil, fmt.Errorf("item %d is not on the disk", i)
			}
		}
	} else if err := s.keep(ctx, most); err != nil {
		return nil, err
	}
	var cells []Cell
	for _, n := range o.Items {
		got, host, err := s.fromCache(ctx, n)
		if err != nil {
			return cells, fmt.Errorf("%d items: %w", n, err)
		}
		if least := n - deviceRoom; tier != plan.Device && host < least {
			return cells, fmt.Errorf("%d of %d items are in the host's memory, want at least %d", host, n, least)
		}
		c := Cell{Items: n, Tier: tier.String(), Host: host}
		c.Off, c.Spread = compare(got, want[n])
		c.Pass = c.Off <= o.Limit*c.Spread
		cells = append(cells, c)
	}
	return cells, nil
}

func key(item int) plan.Key { return kv.KeyOf(plan.Key{}, []int32{int32(item)}, "item") }

// keep computes items and publishes their KV.
func (s *stack) keep(ctx context.Context, items int) error {
	all := s.prompt(items).Segments
	for first := 0; first < items; first += together {
		n := min(together, items-first)
		j := &engine.Job{Plan: &plan.Plan{Segments: all[first : first+n]},
			Segments: slices.Repeat([]engine.Segment{{Keep: true}}, n)}
		r, err := s.engine.Do(ctx, j)
		if err != nil {
			return err
		}
		for i, e := range r.Kept {
			if e == nil {
				return fmt.Errorf("item %d was not kept", first+i)
			}
			s.store.Publish(plan.Item, key(first+i), nil, e)
			e.Release()
		}
		s.store.Flush() // what is being written to the disk keeps its place on the device
	}
	return nil
}

// fromCache asks for a prompt all items of which are cached, and returns how many of them were in the host's memory.
func (s *stack) fromCache(ctx context.Context, items int) (out []float32, host int, err error) {
	cached := make([]*kv.Entry, items+1)
	defer func() {
		for _, e := range cached {
			if e != nil {
				e.Release()
			}
		}
	}()
	for i := range items {
		var at plan.Tier
		if cached[i], at = s.store.Get(key(i)); cached[i] == nil {
			return nil, 0, fmt.Errorf("item %d is not cached", i)
		}
		if at == plan.Host {
			host++
		}
	}
	out, err = s.ask(ctx, items, cached)
	return out, host, err
}

// compare returns the largest difference, and the spread of the wanted values. What is no number is infinitely far off.
func compare(got, want []float32) (off, spread float64) {
	low, high := math.Inf(1), math.Inf(-1)
	for i, w := range want {
		d := math.Abs(float64(got[i]) - float64(w))
		if math.IsNaN(d) {
			d = math.Inf(1)
		}
		off, low, high = max(off, d), min(low, float64(w)), max(high, float64(w))
	}
	return off, high - low
}
