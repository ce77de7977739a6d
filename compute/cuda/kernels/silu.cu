// silu: out = silu(gate + bias) · (up + bias), for a feed-forward layer whose product is not fused.
// Column 2i of the product is gate's column i, column 2i+1 up's. Reads [row][2·cols], writes
// [row][cols], 8 columns per thread; runs against memory bandwidth. IN is the format of the product,
// OUT of the result. cols is a multiple of 8; width is the model's, and the bias has width values of gate
// and width of up.
// check: IN=0 OUT=0
// check: IN=0 OUT=1
// check: IN=1 OUT=1
#include "grebe.cuh"
#include "load.cuh"

KERNEL void silu_up(u8* out, const u8* in, const float* bias, const int* rows, int cols, int width) {
  const int in_size = IN == 0 ? 4 : 2, out_size = OUT == 0 ? 4 : 2;
  int col = (blockIdx.y * blockDim.x + threadIdx.x) * 8, row = blockIdx.x;
  wait_for_previous();
  allow_next();
  if (row >= *rows || col >= cols) return;
  const u8* at = in + ((u64)row * cols + col) * 2 * in_size;
  float v[16], to[8];
  load8<IN>(at, v);
  load8<IN>(at + 8 * in_size, v + 8);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    float gate = v[2 * i], up = v[2 * i + 1];
    if (bias && col + i < width) { gate += bias[col + i]; up += bias[width + col + i]; }
    to[i] = silu(gate) * up;
  }
  store8<OUT>(out + ((u64)row * cols + col) * out_size, to);
}
