package weights

import (
	"bytes"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
)

func TestTensorDependsOnItsSeedAlone(t *testing.T) {
	a, b, c := Tensor(1, 30, 50, 0, 1), Tensor(1, 30, 50, 0, 1), Tensor(2, 30, 50, 0, 1)
	if !bytes.Equal(a.Data, b.Data) || bytes.Equal(a.Data, c.Data) {
		t.Error("tensors do not depend on their seed alone")
	}
}

// Layers have weights of their own unless they are to share them.
func TestDecoderPacksEveryLayer(t *testing.T) {
	s := compute.Shape{Layers: 2, Hidden: 32, Heads: 2, KVHeads: 1, HeadDim: 16, Inter: 32}
	for _, c := range []struct {
		shared bool
		linear int
	}{{true, 3}, {false, 6}} {
		d := &counting{Device: ref.New()}
		m, err := Decoder(d, s, Options{Vocab: 100, Positions: 64, Bias: true, Norms: true, Shared: c.shared, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		if shape := m.Shape(); d.linear != c.linear || shape.Layers != 2 || m.Vocab() != 100 {
			t.Errorf("shared %v: %d matrices packed, want %d; %d layers, vocabulary %d", c.shared, d.linear, c.linear,
				shape.Layers, m.Vocab())
		}
	}
}

type counting struct {
	compute.Device
	linear int
}

func (d *counting) Linear(dt compute.DType, parts ...compute.Tensor) (compute.Linear, error) {
	d.linear++
	return d.Device.Linear(dt, parts...)
}
