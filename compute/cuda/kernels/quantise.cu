// quantise: rows of in become e4m3, each with a scale of its own. A block per row, which it keeps in registers; runs against
// memory bandwidth. For attention's result, and for weights as they are loaded.
//
// IN is the format of in, 0 or 1. Rows have COLS values, a multiple of 16. The block has THREADS threads. rows is where
// their number is, or none: then all of the grid's are there.
// check: IN=0 COLS=28672 THREADS=512
// check: IN=1 COLS=1536 THREADS=96
#include "grebe.cuh"
#include "load.cuh"

#define TURNS ((COLS + 8 * THREADS - 1) / (8 * THREADS))

KERNEL void __launch_bounds__(THREADS) quantise(u8* out, float* scales, const u8* in, const int* rows) {
  __shared__ float scratch[33];
  u64 row = blockIdx.x;
  wait_for_previous();
  allow_next();
  if (rows && (int)row >= *rows) return;
  const u8* from = in + row * COLS * SIZE_OF(IN);
  float v[TURNS][8], most = 0;
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int c = (t * THREADS + threadIdx.x) * 8;
    if (c < COLS) load8<IN>(from + (u64)c * SIZE_OF(IN), v[t]);
  }
#pragma unroll
  for (int t = 0; t < TURNS; t++)
    if ((t * THREADS + threadIdx.x) * 8 < COLS) most = largest8(v[t], most);
  Rounding r = rounding(block_max(most, scratch));
  if (threadIdx.x == 0) scales[row] = r.scale;
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int c = (t * THREADS + threadIdx.x) * 8;
    if (c < COLS) store8_e4m3(out + row * COLS + c, v[t], r.inverse);
  }
}
