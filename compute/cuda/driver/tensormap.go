package driver

import (
	"fmt"
	"unsafe"
)

const tensorMapWords = 16 // 128 bytes, aligned to 64

// TensorMap describes a matrix in the GPU's memory to the bulk copy engine.
type TensorMap struct{ words [tensorMapWords]uint64 }

// Swizzle is how the copy engine lays out a tile's rows in shared memory.
type Swizzle uint32

// Swizzle modes, as cuda.h numbers them.
const (
	SwizzleNone Swizzle = iota
	Swizzle32
	Swizzle64
	Swizzle128
)

// ElementType is the type of a tensor map's elements, as cuda.h numbers them.
type ElementType uint32

// Element types.
const (
	U8    ElementType = 0
	Float ElementType = 7
	BF16  ElementType = 9
)

// Tiled describes a tensor for tiled copies. The innermost dimension comes first.
type Tiled struct {
	Type    ElementType
	Base    Ptr   // aligned to 16
	Dims    []int // sizes in elements, at most 5
	Strides []int // in bytes, of all dimensions but the first; multiples of 16
	Box     []int // sizes of a tile, at most 256 each
	Swizzle Swizzle
	// Promote asks the L2 cache for whole lines of 128 bytes, or 256.
	Promote int
}

// Encode makes a tensor map. It needs no current context.
func (t Tiled) Encode() (*TensorMap, error) {
	var dims, strides [5]uint64
	var box, steps [5]uint32
	for i, d := range t.Dims {
		dims[i], box[i], steps[i] = uint64(d), uint32(t.Box[i]), 1
	}
	for i, s := range t.Strides {
		strides[i] = uint64(s)
	}
	promote := map[int]uintptr{0: 0, 64: 1, 128: 2, 256: 3}[t.Promote]
	// The driver wants 64-byte alignment, which the Go heap gives to 128-byte objects.
	m := new(TensorMap)
	err := call(cu.tensorMapEncodeTiled, uintptr(unsafe.Pointer(m)), uintptr(t.Type), uintptr(len(t.Dims)),
		uintptr(t.Base),
		uintptr(unsafe.Pointer(&dims[0])), uintptr(unsafe.Pointer(&strides[0])), uintptr(unsafe.Pointer(&box[0])),
		uintptr(unsafe.Pointer(&steps[0])), 0, uintptr(t.Swizzle), promote, 0)
	if err != nil {
		return nil, fmt.Errorf("tensor map %+v: %w", t, err)
	}
	return m, nil
}
