// scaled: multiplies a product of FP8 by the scales of its rows and columns. A block per row; stride is the columns of a
// row.
#include "grebe.cuh"

KERNEL void scaled(float* out, const float* row_scale, const float* col_scale, const int* rows, int stride) {
  u64 row = blockIdx.x;
  wait_for_previous();
  allow_next();
  if ((int)row >= *rows) return;
  float by = row_scale[row];
  for (int c = threadIdx.x; c < stride; c += blockDim.x) out[row * stride + c] = out[row * stride + c] * col_scale[c] * by;
}
