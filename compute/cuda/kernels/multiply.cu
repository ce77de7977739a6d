// multiply: out[row] = in[row]·wᵀ, for few rows that come from the host, in float. A warp per column of out goes
// along a row of w, for up to ROWS rows of in at a time, each of which it sums by itself: what a row yields does not
// depend on the others. Runs against memory bandwidth, that of w.
//
// W is the format of w, 0 or 1, whose rows have stride values, a multiple of 16.
// check: W=0
// check: W=1
#include "grebe.cuh"
#include "load.cuh"

#define ROWS 4

KERNEL void __launch_bounds__(256) multiply(float* out, const float* in, const u8* w, int rows, int width, int columns, int stride) {
  int column = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (column >= columns) return;
  const u8* from = w + (u64)column * stride * SIZE_OF(W);
  for (int first = blockIdx.y * ROWS; first < rows; first += gridDim.y * ROWS) { // a grid has up to 65,535 blocks along y
    float sum[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum[r] = 0;
    for (int k = lane * 8; k < stride; k += 256) {
      float v[8];
      load8<W>(from + (u64)k * SIZE_OF(W), v);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const float* x = in + (u64)min_i(first + r, rows - 1) * width;
#pragma unroll
        for (int i = 0; i < 8; i++)
          if (k + i < width) sum[r] += v[i] * x[k + i];
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float s = warp_sum(sum[r]);
      if (lane == 0 && first + r < rows) out[(u64)(first + r) * columns + column] = s;
    }
  }
}
