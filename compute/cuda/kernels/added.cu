// added: x += delta by the scales of its row and column, and bias: the end of a product of FP8 that no norm follows. A
// block per row, 8 columns per thread; runs against memory bandwidth. stride is the columns of a row, a multiple of 16.
#include "grebe.cuh"
#include "load.cuh"

KERNEL void added(float* x, const bf16* delta, const float* row_scale, const float* col_scale, const float* bias,
                  const int* rows, int stride) {
  u64 row = blockIdx.x;
  wait_for_previous();
  allow_next();
  if ((int)row >= *rows) return;
  float by = row_scale[row];
  for (int c = threadIdx.x * 8; c < stride; c += blockDim.x * 8) {
    float v[8], d[8], s[8], b[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    load8<0>(x + row * stride + c, v);
    load8<1>(delta + row * stride + c, d);
    load8<0>(col_scale + c, s);
    if (bias) load8<0>(bias + c, b);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] += d[k] * s[k] * by + b[k];
    store8<0>(x + row * stride + c, v);
  }
}
