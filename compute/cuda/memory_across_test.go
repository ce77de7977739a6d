package cuda

import (
	"bytes"
	"testing"

	"grebe/compute"
)

// Copies between the host's memory and the GPU's come behind fills of the same blocks. Nobody who waits for them keeps
// batches from beginning, and batches do not wait for them on the GPU.
func TestCopiesAcrossKeepNoBatchWaiting(t *testing.T) {
	g, d := simulate(t, Options{})
	m := d.Memory()
	const size, blocks = 4096, 6
	var near, far [blocks]compute.Block
	var down, up []compute.Move
	for i := range blocks {
		var err error
		if near[i], err = m.Alloc(size); err != nil {
			t.Fatal(err)
		}
		if far[i], err = m.Host().Alloc(size); err != nil {
			t.Fatal(err)
		}
		defer m.Free(near[i])
		defer m.Host().Free(far[i])
		if err := m.Write(near[i], bytes.Repeat([]byte{byte(i + 1)}, size)); err != nil {
			t.Fatal(err)
		}
		down, up = append(down, compute.MoveAll(far[i], near[i])), append(up, compute.MoveAll(near[i], far[i]))
	}
	if err := m.Zero(near[2]); err != nil { // it is not waited for
		t.Fatal(err)
	}
	waits, held := 0, 0
	g.Fail = func(call string) int32 {
		if call == "cuStreamSynchronize" {
			waits++
			if !d.memory.mu.TryLock() {
				held++
			} else {
				d.memory.mu.Unlock()
			}
		}
		return 0
	}
	copies := func(moves []compute.Move) {
		t.Helper()
		waits, held = 0, 0
		if err := m.Copy(moves...); err != nil {
			t.Fatal(err)
		}
		if waits == 0 || held > 0 {
			t.Errorf("%d of %d waits for copies keep others from the GPU's memory, want some waits and none of these", held,
				waits)
		}
	}
	copies(down)
	for i := range blocks {
		want := byte(i + 1)
		if i == 2 {
			want = 0
		}
		if !bytes.Equal(far[i].Bytes, bytes.Repeat([]byte{want}, size)) {
			t.Errorf("block %d of the host's memory begins with %d, want %d", i, far[i].Bytes[0], want)
		}
		waits, held = 0, 0
		if err := m.Host().Zero(far[i]); err != nil {
			t.Fatal(err)
		}
		if held > 0 {
			t.Errorf("%d of %d waits to zero the host's memory keep others from the GPU's, want none", held, waits)
		}
		far[i].Bytes[0] = byte(10 + i)
	}
	copies(up)
	if p := g.Pending(); len(p) > 0 {
		t.Errorf("still under way: %v", p)
	}
	got := make([]byte, size)
	for i := range blocks {
		if err := m.Read(got, near[i]); err != nil {
			t.Fatal(err)
		}
		if got[0] != byte(10+i) || got[1] != 0 {
			t.Errorf("block %d of the GPU's memory begins with %d, %d, want %d, 0", i, got[0], got[1], 10+i)
		}
	}
}

// Moves of one call that write to the same bytes take effect in their order, also from the host's memory to the GPU's.
func TestCopiesAcrossInOrder(t *testing.T) {
	_, d := simulate(t, Options{})
	m := d.Memory()
	near, err := m.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free(near)
	far, err := m.Host().Alloc(128)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Host().Free(far)
	for i := range far.Bytes {
		far.Bytes[i] = byte(i / 64)
	}
	if err := m.Copy(compute.MoveAll(near, far.Slice(0, 64)), compute.MoveAll(near, far.Slice(64, 64))); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 64)
	if err := m.Read(got, near); err != nil || got[0] != 1 {
		t.Errorf("the first move's bytes are there, not the last one's: %d, %v", got[0], err)
	}
}
