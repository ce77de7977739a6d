// silu: out = silu(gate + bias) · (up + bias), for a feed-forward layer whose product is not fused.
// Column 2i of the product is gate's column i, column 2i+1 up's. Reads [row][2·cols], writes
// [row][cols], 8 columns per thread; runs against memory bandwidth. FORMAT is that of the product and
// of the result. cols is a multiple of 8; width is the model's, and the bias has width values of gate
// and width of up.
// check: FORMAT=0
// check: FORMAT=1
#include "grebe.cuh"
#include "load.cuh"

KERNEL void silu_up(u8* out, const u8* in, const float* bias, const int* rows, int cols, int width) {
  const int size = FORMAT == 0 ? 4 : 2;
  int col = (blockIdx.y * blockDim.x + threadIdx.x) * 8, row = blockIdx.x;
  wait_for_previous();
  if (row >= *rows || col >= cols) return;
  const u8* at = in + ((u64)row * cols + col) * 2 * size;
  float v[16], to[8];
  load8<FORMAT>(at, v);
  load8<FORMAT>(at + 8 * size, v + 8);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    float gate = v[2 * i], up = v[2 * i + 1];
    if (bias && col + i < width) { gate += bias[col + i]; up += bias[width + col + i]; }
    to[i] = silu(gate) * up;
  }
  store8<FORMAT>(out + ((u64)row * cols + col) * size, to);
}
