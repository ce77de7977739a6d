// noise: fills memory with pseudo-random values of about normal distribution, for measurements: zeros
// run faster than numbers do.
// check: FORMAT=0
// check: FORMAT=1
// check: FORMAT=3
#include "grebe.cuh"
#include "load.cuh"

DEVICE u32 mix(u32 v) {
  v ^= v >> 16; v *= 0x7feb352du;
  v ^= v >> 15; v *= 0x846ca68bu;
  return v ^ (v >> 16);
}

KERNEL void noise(u8* out, u64 count, u32 seed, float mean, float deviation) {
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
    u32 h = mix((u32)i * 2654435761u + mix(seed + (u32)(i >> 32)));
    // Four bytes, each uniform: their sum has a deviation of 147.8 around 510.
    float sum = (float)(h & 255) + (float)(h >> 8 & 255) + (float)(h >> 16 & 255) + (float)(h >> 24);
    store1<FORMAT>(out, i, mean + deviation * (sum - 510.0f) * (1.0f / 147.8f));
  }
}
