package gpu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"grebe/bench/report"
	"grebe/bench/weights"
	"grebe/compute"
	"grebe/compute/cuda"
)

// rankings is a model of events (HSTU) of random weights on a device, and users whose stored events have cached KV.
type rankings struct {
	shape  compute.Shape
	table  compute.Table
	layers []compute.STUWeights
	mem    compute.Memory
	runner compute.STU
	blocks []compute.Block
	users  []compute.Segment // with their stored events
	own    compute.Block     // KV of candidates
	fresh  int               // new events of a request
	each   int               // candidates of a request
}

const (
	eventRows   = 2048 // of a batch
	eventChunk  = 64   // tokens
	eventItems  = 1000
	eventsOf    = 15_000
	eventsFresh = 20
	eventsEach  = 100
	eventUsers  = 16
)

// newRankings makes users of so many stored events, whose KV it computes.
func newRankings(d compute.Device, shape compute.Shape, users, stored, fresh, each int) (*rankings, error) {
	e := &rankings{shape: shape, mem: d.Memory(), fresh: fresh, each: each}
	err := e.open(d)
	for range users {
		if err == nil {
			err = e.store(stored)
		}
	}
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

func (e *rankings) open(d compute.Device) (err error) {
	s := &e.shape
	n := s.Heads * s.HeadDim
	if e.table, err = d.Table(weights.Tensor(1, eventItems, s.Hidden, 0, 1)); err != nil {
		return err
	}
	for l := range uint64(s.Layers) {
		uvqk, err1 := d.Linear(compute.BF16, weights.Matrix(10+l, 4*n, s.Hidden))
		out, err2 := d.Linear(compute.BF16, weights.Matrix(30+l, s.Hidden, 3*n))
		gain, err3 := d.Vector(weights.Tensor(50+l, 1, s.Hidden, 1, 0.2))
		bias, err4 := d.Vector(weights.Tensor(70+l, 1, 4*n, 0, 0.1))
		outGain, err5 := d.Vector(weights.Tensor(90+l, 1, n, 1, 0.2))
		if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
			return err
		}
		e.layers = append(e.layers, compute.STUWeights{Norm: gain, NormBias: gain, UVQK: uvqk, UVQKBias: bias,
			OutNorm: outGain, OutNormBias: outGain, Out: out})
	}
	r, err := d.Open(*s, eventRows)
	if err != nil {
		return err
	}
	e.runner = r.(compute.STU)
	e.own, err = e.alloc(s.ChunkBytes(1, true) * eventRows)
	return err
}

func (e *rankings) alloc(n int) (compute.Block, error) {
	b, err := e.mem.Alloc(n)
	if err == nil {
		e.blocks = append(e.blocks, b)
	}
	return b, err
}

func (e *rankings) close() (err error) {
	if e.runner != nil {
		err = e.runner.Close()
	}
	for _, b := range e.blocks {
		e.mem.Free(b)
	}
	return err
}

// store computes the KV of a user's stored events, with room for new ones behind them.
func (e *rankings) store(stored int) error {
	size := e.shape.ChunkBytes(eventChunk, false)
	chunks := (stored + e.fresh + eventChunk - 1) / eventChunk
	block, err := e.alloc(size * chunks)
	if err != nil {
		return err
	}
	var all []compute.Chunk
	for i := range chunks {
		all = append(all, block.Slice(i*size, size).Chunk(eventChunk, false))
	}
	user := compute.Segment{}
	for user.Cached < stored {
		b := &eventBatch{}
		user.Len = min(user.Cached+eventRows, stored)
		user.Chunks = all[:(user.Len+eventChunk-1)/eventChunk]
		b.add(user)
		b.wanted = []int32{int32(len(b.batch.Tokens) - 1)}
		if _, err := e.run(b); err != nil {
			return err
		}
		user.Cached = user.Len
	}
	user.Len, user.Chunks = stored+e.fresh, all
	e.users = append(e.users, user)
	return nil
}

// eventBatch is a batch and the rows whose states are wanted.
type eventBatch struct {
	batch  compute.Batch
	wanted []int32
}

func (b *eventBatch) add(s compute.Segment) {
	s.First = len(b.batch.Tokens)
	for i := s.Cached; i < s.Len; i++ {
		b.batch.Tokens = append(b.batch.Tokens, int32((s.Start+i)%eventItems))
		b.batch.Positions = append(b.batch.Positions, int32(s.Start+i))
	}
	b.batch.Segments = append(b.batch.Segments, s)
}

// of returns a batch of a ranking for each of some users.
func (e *rankings) of(users []compute.Segment) *eventBatch {
	b, size := &eventBatch{}, e.shape.ChunkBytes(1, true)
	for _, u := range users {
		at := int32(len(b.batch.Segments))
		b.add(u)
		for range e.each {
			b.wanted = append(b.wanted, int32(len(b.batch.Tokens)))
			b.add(compute.Segment{Len: 1, Start: u.Len, Sees: []int32{at},
				Chunks: []compute.Chunk{e.own.Slice((len(b.wanted)-1)*size, size).Chunk(1, true)}})
		}
	}
	return b
}

// run returns the states of the wanted rows.
func (e *rankings) run(b *eventBatch) ([]float32, error) {
	if err := e.runner.Begin(&b.batch); err != nil {
		return nil, err
	}
	e.runner.Sum([]compute.SumPart{{Table: e.table, Rows: b.batch.Tokens, Scale: 1}})
	for l := range e.layers {
		e.runner.UVQK(l, &e.layers[l])
		e.runner.Attend(l)
		if l == len(e.layers)-1 {
			e.runner.Keep(b.wanted)
		}
		e.runner.Mix(&e.layers[l])
	}
	out := make([]float32, len(b.wanted)*e.shape.Hidden)
	return out, e.runner.Hidden(nil, b.wanted, out)
}

// measureEvents times a batch of rankings by a model of events as a graph and kernel by kernel, in turns. Both must
// yield the same bits.
func measureEvents(ctx context.Context, o *Options, r *Report) error {
	shape := compute.Shape{Layers: 6, Hidden: 512, Heads: 8, KVHeads: 8, HeadDim: 64, Eps: 1e-6, KV: compute.BF16,
		Pointwise: &compute.Pointwise{Alpha: float32(1 / math.Sqrt(64)), Scale: 1.0 / 16384}}
	with, without := o.Device, o.Device
	with.NoGraphs, without.NoGraphs = false, true
	for _, users := range []int{1, eventUsers} {
		took, err := timeEvents(ctx, o, shape, users, []cuda.Options{with, without})
		if err != nil {
			return fmt.Errorf("models of events: %w", err)
		}
		l := newLine(fmt.Sprintf("events-%d", users), fmt.Sprintf("HSTU 6 × 512, %d × 100 candidates, 15,000 events", users),
			"ms", took[0])
		l.Peers = []Peer{{Name: "without graphs", Value: report.Median(took[1])}}
		r.Lines = append(r.Lines, l)
	}
	return nil
}

// timeEvents returns the milliseconds of a batch on devices with several options.
func timeEvents(ctx context.Context, o *Options, shape compute.Shape, users int, options []cuda.Options) (
	took [][]float64, err error) {
	all := make([]*rankings, len(options))
	for i, opt := range options {
		d, err := cuda.New(opt)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		if all[i], err = newRankings(d, shape, users, eventsOf, eventsFresh, eventsEach); err != nil {
			return nil, err
		}
		defer all[i].close()
	}
	took = make([][]float64, len(options))
	for turn := range warmups + o.Repeats {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var first []float32
		for i, e := range all {
			b := e.of(e.users)
			start := time.Now()
			out, err := e.run(b)
			if err != nil {
				return nil, err
			}
			if turn >= warmups {
				took[i] = append(took[i], float64(time.Since(start).Nanoseconds())/1e6)
			}
			if i == 0 {
				first = out
			} else if !slices.Equal(out, first) {
				return nil, errors.New("states differ with and without graphs")
			}
		}
	}
	return took, nil
}
