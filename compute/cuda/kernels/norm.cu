// rms_norm: out[i] = x[row i] / rms · gain, rounded to OUT; without gain, x itself. A block per row, 8
// columns per thread; the gain is read while the kernel before this one still runs. Runs against memory
// bandwidth, for few rows against the latency of one read and two barriers.
//
// Row i is i, or index[i] where there is an index. x and out have STRIDE columns, a multiple of 16, of
// which width are the model's; the others of out become zero. The block has THREADS threads.
// check: OUT=1 STRIDE=1536 THREADS=192
// check: OUT=0 STRIDE=48 THREADS=32
// check: OUT=1 STRIDE=16384 THREADS=1024
#include "grebe.cuh"
#include "load.cuh"

#define TURNS ((STRIDE + 8 * THREADS - 1) / (8 * THREADS))

KERNEL void __launch_bounds__(THREADS) rms_norm(u8* out, const float* x, const float* gain, const int* index, const int* rows, int width, float eps) {
  const int size = OUT == 0 ? 4 : 2;
  __shared__ float scratch[33];
  int i = blockIdx.x;
  float g[TURNS][8], v[TURNS][8];
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int c = (t * THREADS + threadIdx.x) * 8;
    if (gain && c < STRIDE) load8<0>(gain + c, g[t]);
  }
  wait_for_previous();
  allow_next();
  if (i >= *rows) return;
  const float* from = x + (u64)(index ? index[i] : i) * STRIDE;
  float sum = 0;
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int c = (t * THREADS + threadIdx.x) * 8;
    if (c >= STRIDE) break;
    load8<0>(from + c, v[t]);
#pragma unroll
    for (int k = 0; k < 8; k++) sum += v[t][k] * v[t][k];
  }
  float scale = 1;
  if (gain) scale = rsqrt_exact(block_sum(sum, scratch) / (float)width + eps);
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int c = (t * THREADS + threadIdx.x) * 8;
    if (c >= STRIDE) break;
    if (gain)
#pragma unroll
      for (int k = 0; k < 8; k++) v[t][k] = v[t][k] * scale * g[t][k];
    store8<OUT>(out + ((u64)i * STRIDE + c) * size, v[t]);
  }
}
