package offheap

import (
	"runtime"
	"testing"
)

func TestAllocDiscardFree(t *testing.T) {
	before := Mapped()
	defer func() {
		if after := Mapped(); after != before {
			t.Errorf("%d bytes are mapped, %d before", after, before)
		}
	}()
	for _, n := range []int{0, 1, 4096, hugePage - 1, hugePage, 3*hugePage + 5} {
		b, err := Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Bytes) != n {
			t.Fatalf("%d bytes, want %d", len(b.Bytes), n)
		}
		for i := range b.Bytes {
			if b.Bytes[i] != 0 {
				t.Fatalf("byte %d of %d is not zero", i, n)
			}
			b.Bytes[i] = 1
		}
		b.Discard()
		if n >= hugePage && runtime.GOOS == "linux" && b.Bytes[n/2] != 0 {
			t.Errorf("%d bytes: a discarded byte is still there", n)
		}
		b.Free()
		b.Free() // harmless
	}
}

func TestSlice(t *testing.T) {
	b, err := Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	Slice[float32](b.Bytes, 16)[15] = 1
	if b.Bytes[63] == 0 {
		t.Error("the view is not of the bytes")
	}
	defer func() {
		if recover() == nil {
			t.Error("17 values fit into 16")
		}
	}()
	Slice[float32](b.Bytes, 17)
}
