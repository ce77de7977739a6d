package ref

import "grebe/compute"

// NewCoarse returns a device that rounds the operands of products.
func NewCoarse() compute.Device { return &device{coarse: true, memory: compute.NewHostMemory()} }
