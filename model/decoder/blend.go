package decoder

import (
	"errors"
	"fmt"
	"slices"

	"grebe/compute"
	"grebe/model"
)

// Blend makes the decoder a model.Blender.
func (d *decoder) Blend(r compute.Runner, b *compute.Batch, repair *model.Repair, keep []int32) error {
	blender, err := d.blender(r, repair)
	if err == nil {
		err = d.check(b, keep)
	}
	if err == nil {
		err = r.Begin(b)
	}
	if err != nil {
		return err
	}
	r.Embed(d.embedding)
	if repair.Watch != nil {
		return d.watch(blender, b, repair, keep)
	}
	for i := range repair.Layer {
		d.layer(r, b, i, nil)
	}
	w := &d.layers[repair.Layer]
	r.QKV(repair.Layer, &w.attention)
	r.Attend(repair.Layer)
	if err := d.repair(blender, b, repair, keep); err != nil {
		return fmt.Errorf("decoder: blend after layer %d: %w", repair.Layer, err)
	}
	r.Output(&w.attention)
	r.FFN(&w.ffn)
	for i := repair.Layer + 1; i < len(d.layers); i++ {
		d.layer(r, b, i, keep)
	}
	return nil
}

// blender refuses what cannot blend.
func (d *decoder) blender(r compute.Runner, repair *model.Repair) (compute.Blender, error) {
	blender, ok := r.(compute.Blender)
	switch {
	case !ok:
		return nil, fmt.Errorf("decoder: blend: the device's runner, %T, does not", r)
	case d.shape.KV == compute.FP8:
		return nil, errors.New("decoder: blend: KV in fp8 cannot be moved to other positions")
	case repair.Watch != nil:
	case repair.Layer < 0 || repair.Layer >= len(d.layers)-1:
		return nil, fmt.Errorf("decoder: blend: choose rows after layer %d of %d", repair.Layer, len(d.layers))
	case repair.Load == nil || repair.Choose == nil:
		return nil, errors.New("decoder: blend: a repair without Load or Choose")
	}
	return blender, nil
}

// watch goes through all layers and says what attention rows received.
func (d *decoder) watch(r compute.Blender, b *compute.Batch, repair *model.Repair, keep []int32) error {
	received := make([]float32, len(b.Tokens))
	for i := range d.layers {
		w := &d.layers[i]
		r.QKV(i, &w.attention)
		r.Attend(i)
		if err := r.Received(received); err != nil {
			return fmt.Errorf("decoder: watch layer %d: %w", i, err)
		}
		repair.Watch(i, received)
		if last := i == len(d.layers)-1; last && keep != nil {
			if len(keep) == 0 {
				break // the KV is all that was wanted
			}
			r.Keep(keep)
		}
		r.Output(&w.attention)
		r.FFN(&w.ffn)
	}
	return nil
}

// repair places what stands in for rows and drops those that are not chosen. Placing comes first: a device
// may do it while it weighs the rows.
func (d *decoder) repair(r compute.Blender, b *compute.Batch, repair *model.Repair, keep []int32) error {
	if s, ok := r.(compute.Starter); ok {
		s.Start() // the layers so far run while what stands in is loaded
	}
	parts, err := repair.Load()
	if err != nil {
		return fmt.Errorf("load what stands in: %w", err)
	}
	if err := b.CheckParts(&d.shape, parts); err != nil {
		return err
	}
	r.Place(repair.Layer+1, parts)
	var received []float32
	if repair.Received {
		received = make([]float32, len(b.Tokens))
		if err := r.Received(received); err != nil {
			return err
		}
	}
	rows := repair.Choose(received)
	if err := checkChosen(rows, keep, len(b.Tokens)); err != nil {
		return err
	}
	if err := b.CheckKept(&d.shape, rows); err != nil {
		return err
	}
	r.Keep(rows)
	return nil
}

// checkChosen makes sure that rows are ascending ones of n, and that all in keep are among them.
func checkChosen(rows, keep []int32, n int) error {
	before := int32(-1)
	for _, row := range rows {
		if row <= before || int(row) >= n {
			return fmt.Errorf("row %d was chosen after row %d of %d", row, before, n)
		}
		before = row
	}
	for _, row := range keep {
		if _, ok := slices.BinarySearch(rows, row); !ok {
			return fmt.Errorf("row %d is to be kept, but was not chosen", row)
		}
	}
	return nil
}
