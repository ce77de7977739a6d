package cuda

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"grebe/compute"
)

// TestMoves holds Copy against the same moves on the host, one after the other.
func TestMoves(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	r := rand.New(rand.NewPCG(1, 2))
	const size = 1 << 16
	for round := range 30 {
		image := make([]byte, 2*size)
		for i := range image {
			image[i] = byte(r.Uint32())
		}
		m := d.Memory()
		device, err1 := m.Alloc(size)
		host, err2 := m.Host().Alloc(size)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if err := m.Write(device, image[:size]); err != nil {
			t.Fatal(err)
		}
		if err := m.Host().Write(host, image[size:]); err != nil {
			t.Fatal(err)
		}
		whole := func(at int) compute.Block {
			if at < size {
				return device
			}
			return host
		}
		var moves []compute.Move
		for range 1 + r.IntN(40*(1+round%2)) {
			unit := []int{1, 16}[r.IntN(2)]
			rows, width := 1+r.IntN(4), unit*(1+r.IntN(30))
			stride := width + unit*r.IntN(5)
			extent := (rows-1)*stride + width
			from, to := r.IntN(2)*size, r.IntN(2)*size
			src, dst := r.IntN((size/2-extent)/unit)*unit, (size/2+r.IntN((size/2-extent)/unit)*unit)/unit*unit
			if r.IntN(2) == 0 {
				src, dst = dst, src
			}
			moves = append(moves, compute.Move{Dst: whole(to).Slice(dst, extent), Src: whole(from).Slice(src, extent),
				Width: width, Rows: rows, DstStride: stride, SrcStride: stride})
			for i := range rows {
				copy(image[to+dst+i*stride:][:width], image[from+src+i*stride:][:width])
			}
		}
		if err := m.Copy(moves...); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 2*size)
		if err := m.Read(got[:size], device); err != nil {
			t.Fatal(err)
		}
		if err := m.Host().Read(got[size:], host); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if got[i] != image[i] {
				t.Fatalf("round %d, %d moves: byte %d is %#x, want %#x", round, len(moves), i, got[i], image[i])
			}
		}
		if err := m.Zero(device); err != nil {
			t.Fatal(err)
		}
		if err := m.Read(got[:size], device); err != nil || !bytes.Equal(got[:size], make([]byte, size)) {
			t.Fatalf("zeroed memory is not zero, or %v", err)
		}
		m.Free(device)
		m.Host().Free(host)
	}
}

// TestSizes: batches of the sizes meet every shape of products, and none is larger than allowed.
func TestSizes(t *testing.T) {
	for _, most := range []int{1, 100, 2048, 8192, 20000} {
		sizes := (&runner{max: 10000}).Sizes(most)
		met := map[int]bool{}
		for _, n := range sizes {
			if n > min(most, 10000) {
				t.Errorf("%d rows of at most %d", n, most)
			}
			met[coarse(bucket(n))] = true
		}
		for rows := 1; rows <= most; rows++ {
			if m := coarse(bucket(rows)); m <= min(most, 10000) && !met[m] {
				t.Fatalf("at most %d: nothing meets products of %d rows; sizes %v", most, m, sizes)
			}
		}
	}
}
