package model_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/model"
)

// copier packs by copying, like a real device, and reads tables in place.
type copier struct{ compute.Device }

type copied struct{ rows, data []byte }

func (c *copied) Out() int     { return 0 }
func (c *copied) In() int      { return 0 }
func (c *copied) Rows() int    { return 0 }
func (c *copied) Cols() int    { return 0 }
func (c *copied) Len() int     { return 0 }
func (c *copied) Bytes() int64 { return int64(len(c.data)) }

func (copier) Linear(_ compute.DType, parts ...compute.Tensor) (compute.Linear, error) {
	c := &copied{}
	for _, p := range parts {
		c.data = append(c.data, p.Data...)
	}
	return c, nil
}

func (d copier) GateUp(dt compute.DType, gate, up compute.Tensor) (compute.Linear, error) {
	return d.Linear(dt, gate, up)
}

func (copier) Vector(t compute.Tensor) (compute.Vector, error) { return &copied{data: t.Data}, nil }
func (copier) Table(t compute.Tensor) (compute.Table, error)   { return &copied{rows: t.Data}, nil }

// residentFile returns how many bytes of mapped files this process holds.
func residentFile(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc/self/status: ", err)
	}
	for line := range strings.Lines(string(status)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "RssFile: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	t.Skip("no RssFile in /proc/self/status")
	return 0
}

// Packed weights are not held twice: their pages of the checkpoint are given back.
func TestPackedPagesAreReleased(t *testing.T) {
	s := spec()
	s.Hidden, s.Inter, s.Layers, s.DType = 256, 1024, 16, compute.BF16
	dir := write(t, s)
	before := residentFile(t)
	m, err := model.Open(dir, copier{}, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if held := residentFile(t) - before; held > m.CheckpointBytes()/4 {
		t.Errorf("%d bytes of a checkpoint of %d stay resident", held, m.CheckpointBytes())
	}
	if m.Bytes() < m.CheckpointBytes() || m.Bytes() > m.CheckpointBytes()*11/10 {
		t.Errorf("the model says it holds %d bytes, the checkpoint has %d", m.Bytes(), m.CheckpointBytes())
	}
}
