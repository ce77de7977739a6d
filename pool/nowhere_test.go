package pool

import "grebe/compute"

// nowhere is memory that is only counted.
type nowhere struct{ compute.Memory }

func (nowhere) Alloc(n int) (compute.Block, error) { return compute.Block{Addr: 1 << 40, Size: n}, nil }
func (nowhere) Free(compute.Block)                 {}
