package profile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"grebe/sim"
)

// Published is what a manufacturer says of a device.
type Published struct {
	Label  string
	TFLOPS float64 // dense bf16
	Memory float64 // bytes
	Read   float64 // bytes per second of its memory
	Link   float64 // bytes per second from the host, one direction
	Source string
}

// Rates of links, one direction: lanes × transfers per second × the share of the encoding.
const (
	pcie3 = 16 * 8e9 / 8 * 128 / 130
	pcie4 = 2 * pcie3
	pcie5 = 2 * pcie4
)

// The devices of the papers, beside the one that was measured.
var (
	h200 = Published{"h200", 989.5, 141e9, 4.8e12, pcie5,
		"NVIDIA H200 data sheet: 1,979 bf16 TFLOP/s with sparsity, 4.8 TB/s, PCIe 5.0"}
	// BAT's nodes have PCIe 3.0.
	a100small = Published{"a100-40g", 312, 40e9, 1.555e12, pcie3,
		"NVIDIA A100 data sheet: 312 bf16 TFLOP/s, 40 GB at 1,555 GB/s; PCIe 3.0 as BAT section 6.1 says"}
	a100large = Published{"a100-80g", 312, 80e9, 2.039e12, pcie4,
		"NVIDIA A100 data sheet: 312 bf16 TFLOP/s, 80 GB at 2,039 GB/s (SXM), PCIe 4.0"}
	h20 = Published{"h20", 148, 96e9, 4.0e12, pcie5,
		"NVIDIA H20, as resellers publish it: 148 bf16 TFLOP/s, 96 GB at 4.0 TB/s, PCIe 5.0"}
)

// target is a profile to derive.
type target struct {
	device Published
	gpus   int    // that share a model by tensor parallelism
	model  string // of Models
	from   string // the measured model; if there is none, see instead
	host   int64  // bytes of a node's memory for KV
}

// Memory for KV per node: BAT 150 GB of 200 (section 6.4), 500 GB in production (section 6.1); RcLLM does not say; HLEM
// keeps KV in the GPU only, and rows in host memory.
var targets = []target{
	{a100small, 1, "qwen2-1.5b", "qwen2-1.5b", 150e9},
	{a100small, 1, "llama3-1b", "llama3-1b", 150e9},
	{h20, 1, "qwen2-1.5b", "qwen2-1.5b", 400e9},
	{a100large, 1, "qwen3-8b", "qwen3-8b", 1e12},
	{a100large, 4, "qwen-72b", "qwen3-8b", 1e12},
	{a100large, 1, "hstu-3", "hstu-3", 0},
	{a100large, 1, "hstu-6", "hstu-6", 0},
}

// instead returns the model that others of its kind are derived from by their FLOPs, if they were not measured.
func instead(m *Model) string {
	if m.Events > 0 {
		return "hstu-6"
	}
	return "qwen2-1.5b"
}

// Derive reads the profiles of an H200 in dir and writes those of the papers' devices beside them. Models that were not
// measured are left out. It calls done with each name.
func Derive(dir string, done func(name string)) error {
	found := 0
	for _, t := range targets {
		measured, err := sim.LoadProfile(filepath.Join(dir, h200.Label+"-"+t.from+".json"))
		if errors.Is(err, fs.ErrNotExist) {
			model := Models[t.model]
			t.from = instead(&model)
			measured, err = sim.LoadProfile(filepath.Join(dir, h200.Label+"-"+t.from+".json"))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("bench profile: %w", err)
		}
		p := t.derive(measured)
		if err := p.Validate(); err != nil {
			return fmt.Errorf("bench profile: derive %s: %w", p.Name, err)
		}
		if err := write(filepath.Join(dir, p.Name+".json"), p); err != nil {
			return err
		}
		found++
		done(p.Name)
	}
	if found == 0 {
		return fmt.Errorf("bench profile: %s has no profile of an H200: measure one with --label h200", dir)
	}
	return nil
}

// derive scales a measured profile. The device is assumed to reach the share of its published rates that the H200
// reached: products and attention by FLOP/s, the fixed time of a batch by the bandwidth that reads the weights, copies
// by the link. Time per request is the host's and stays.
func (t *target) derive(m *sim.Profile) *sim.Profile {
	from, to := Models[t.from], Models[t.model]
	d, n := &t.device, float64(t.gpus)
	flops := h200.TFLOPS / (d.TFLOPS * n)
	p := *m
	p.Name, p.Model, p.Derived = d.Label+"-"+t.model, to.Name, true
	p.Batches, p.Slowdown, p.Added, p.Ratios = nil, 0, 0, nil // tiles and threads of another device are not known
	parallel := ""
	if t.gpus > 1 {
		p.Name = fmt.Sprintf("%s-x%d-%s", d.Label, t.gpus, t.model)
		parallel = fmt.Sprintf("; tensor parallelism over %d, with"+
			" two all-reduces per layer over the host link at the same share of its rate", t.gpus)
	}
	products := flops * to.rowFLOPs() / from.rowFLOPs()
	link := m.HostLink / h200.Link * d.Link
	p.Prefill.Fixed *= to.weightBytes() / from.weightBytes() * h200.Read / (d.Read * n)
	p.Prefill.Row = p.Prefill.Row*products + t.reduce(&to, link)
	p.Prefill.Square *= products
	p.Prefill.Key *= flops * to.keyFLOPs() / from.keyFLOPs()
	q := &p.Prefill.Quality
	q.Largest.Ms = p.Prefill.Predict(q.Largest.Rows, q.Largest.Keys, q.Largest.Requests)
	p.KVTokenBytes, p.HostBytes, p.HostLink = to.tokenBytes(), t.host, link*n
	p.DeviceBytes = int64(0.9*d.Memory*n - 1.1*to.weightBytes())
	if p.RowBytes > 0 {
		p.RowLink = link
	}
	p.Source = fmt.Sprintf("derived by grebe-bench profile --derive: %s scaled by published rates, which assumes the "+
		"H200's "+
		"measured shares of its own (%.0f%% of FLOP/s per row, %.0f%% of the link)%s. %s. %s", m.Name,
		100*efficiency(m, &from), 100*m.HostLink/h200.Link, parallel, d.Source, h200.Source)
	return &p
}

// reduce returns the milliseconds per row of the all-reduces of tensor parallelism: two per layer, each of which sends
// and receives 2·(n−1)/n of a row of bf16 values.
func (t *target) reduce(m *Model, link float64) float64 {
	if t.gpus == 1 {
		return 0
	}
	n := float64(t.gpus)
	bytes := 2 * 2 * (n - 1) / n * 2 * float64(m.Shape.Hidden*m.Shape.Layers)
	return bytes / link * 1000
}

// efficiency is the share of the H200's FLOP/s that a row's products reach in a large batch.
func efficiency(p *sim.Profile, m *Model) float64 {
	if !(p.Prefill.Row > 0) {
		return 0
	}
	return m.rowFLOPs() / (p.Prefill.Row / 1000) / (h200.TFLOPS * 1e12)
}
