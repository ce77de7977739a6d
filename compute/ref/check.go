package ref

import (
	"errors"
	"fmt"
	"slices"

	"grebe/compute"
)

// matrix returns w as ref's own, if it has the size that the operation needs.
func (r *runner) matrix(what string, w compute.Linear, out, in int, gated bool) (*linear, error) {
	m, ok := w.(*linear)
	if !ok || m == nil {
		return nil, fmt.Errorf("%s is %T, not packed by this device", what, w)
	}
	if m.out != out || m.in != in || m.gated != gated {
		return nil, fmt.Errorf("%s is %d×%d (gated: %v), want %d×%d (%v)", what, m.out, m.in, m.gated, out, in, gated)
	}
	return m, nil
}

// vector is matrix for vectors; nil stays nil.
func (r *runner) vector(what string, v compute.Vector, n int) (vector, error) {
	if v == nil {
		return nil, nil
	}
	own, ok := v.(vector)
	if !ok {
		return nil, fmt.Errorf("%s is %T, not converted by this device", what, v)
	}
	if len(own) != n {
		return nil, fmt.Errorf("%s has %d values, want %d", what, len(own), n)
	}
	return own, nil
}

func (r *runner) table(t compute.Table) (*table, error) {
	own, ok := t.(*table)
	if !ok || own == nil {
		return nil, fmt.Errorf("the table is %T, not taken by this device", t)
	}
	if own.Cols() != r.s.Hidden {
		return nil, fmt.Errorf("the table has %d columns, want %d", own.Cols(), r.s.Hidden)
	}
	return own, nil
}

func (r *runner) checkLayer(layer int) error {
	if layer < 0 || layer >= r.s.Layers {
		return fmt.Errorf("layer %d of %d", layer, r.s.Layers)
	}
	return nil
}

func (r *runner) checkEmbedded() error {
	if r.x == nil {
		return errors.New("nothing was embedded")
	}
	return nil
}

// checkWhole makes sure that no row was dropped: every row's K and V are needed.
func (r *runner) checkWhole() error {
	if err := r.checkEmbedded(); err != nil {
		return err
	}
	if len(r.x) != len(r.b.Tokens) {
		return fmt.Errorf("only %d of %d rows were kept", len(r.x), len(r.b.Tokens))
	}
	return nil
}

// checkKept makes sure that what was dropped has its K and V in the chunks.
func (r *runner) checkKept() error {
	if err := r.checkEmbedded(); err != nil {
		return err
	}
	return r.b.CheckKept(&r.s, r.rows)
}

// row returns x of a batch row.
func (r *runner) row(row int32) ([]float64, error) {
	i, ok := slices.BinarySearch(r.rows, row)
	if !ok {
		return nil, fmt.Errorf("row %d is not in the batch or was dropped", row)
	}
	return r.x[i], nil
}
