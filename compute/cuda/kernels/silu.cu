// silu: out = silu(gate + bias) · (up + bias), for a feed-forward layer whose product is not fused.
// Reads [row][gate | up], writes [row][inter], 8 columns per thread; runs against memory bandwidth.
// FORMAT is that of the products and of the result. cols, a multiple of 8, is the width of each of
// the two halves; width is the model's, and the bias has 2·width values.
// check: FORMAT=0
// check: FORMAT=1
#include "grebe.cuh"
#include "load.cuh"

KERNEL void silu_up(u8* out, const u8* in, const float* bias, const int* rows, int cols, int width) {
  const int size = FORMAT == 0 ? 4 : 2;
  int col = (blockIdx.x * blockDim.x + threadIdx.x) * 8, row = blockIdx.y;
  wait_for_previous();
  if (row >= *rows || col >= cols) return;
  const u8* at = in + ((u64)row * 2 * cols + col) * size;
  float g[8], u[8];
  load8<FORMAT>(at, g);
  load8<FORMAT>(at + (u64)cols * size, u);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (bias && col + i < width) { g[i] += bias[col + i]; u[i] += bias[width + col + i]; }
    g[i] = silu(g[i]) * u[i];
  }
  store8<FORMAT>(out + ((u64)row * cols + col) * size, g);
}
