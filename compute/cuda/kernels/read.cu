// read: reads memory and keeps nothing, for measurements: the time that other kernels which read much are compared with.
// Each thread has four loads of 16 bytes under way.
//
// Limit: memory bandwidth.
#include "grebe.cuh"

KERNEL void __launch_bounds__(512) read(const U4* from, u64 count, u32* out) {
  u64 step = (u64)gridDim.x * 512, at = (u64)blockIdx.x * 512 + threadIdx.x;
  u32 all = 0;
  for (; at + 3 * step < count; at += 4 * step) {
    U4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = load_once(from + at + i * step);
#pragma unroll
    for (int i = 0; i < 4; i++) all ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  for (; at < count; at += step) {
    U4 v = load_once(from + at);
    all ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (all == 0x6b8f01d3u) *out = all; // so that the loads are needed
}
