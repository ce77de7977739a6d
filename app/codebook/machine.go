package codebook

import (
	"grebe/codes"
	"grebe/compute"
	"grebe/compute/cpu/gemm"
	"grebe/embed"
)

// Machine runs package codes on the CPU's matrix kernels.
type Machine struct {
	multiplier *gemm.Multiplier
	rows       *gemm.Rows
	weights    *gemm.Weights // nil before Load
	bias       []float32
	dims       int
}

var _ codes.Machine = (*Machine)(nil)

// NewMachine returns one with so many threads. The owner MUST Free it.
func NewMachine(threads int) (*Machine, error) {
	m, err := gemm.Standalone(threads)
	if err != nil {
		return nil, err
	}
	return &Machine{multiplier: m, rows: gemm.NewRows(gemm.Best(), compute.F32)}, nil
}

// Free stops the threads and releases the memory.
func (m *Machine) Free() {
	if m.weights != nil {
		m.weights.Free()
	}
	m.rows.Free()
	m.multiplier.Free()
}

// Load implements codes.Machine.
func (m *Machine) Load(centroids, bias []float32, dims int) error {
	t := compute.Tensor{DType: compute.F32, Rows: len(bias), Cols: dims, Data: embed.Bytes(centroids)}
	w, err := gemm.Pack(m.multiplier.Team(), gemm.Best(), compute.F32, t)
	if err != nil {
		return err
	}
	if m.weights != nil {
		m.weights.Free()
	}
	m.weights, m.bias, m.dims = w, bias, dims
	return nil
}

// Scores implements codes.Machine.
func (m *Machine) Scores(out, rows []float32) error {
	n := len(rows) / m.dims
	if !m.rows.Borrow(rows, m.dims, n, m.dims) {
		if err := m.rows.Reset(n, m.dims); err != nil {
			return err
		}
		m.multiplier.Fill(m.rows, rows, m.dims)
	}
	m.multiplier.Store(out, len(m.bias), m.rows, m.weights, m.bias)
	return nil
}

// Each implements codes.Machine.
func (m *Machine) Each(n int, f func(i int)) { m.multiplier.Each(n, f) }
