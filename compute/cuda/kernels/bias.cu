// bias: x[row] += bias, ahead of a product that adds to x.
#include "grebe.cuh"

KERNEL void add_bias(float* x, const float* bias, const int* rows, int stride, int width) {
  int row = blockIdx.x;
  wait_for_previous();
  if (row >= *rows) return;
  for (int i = threadIdx.x; i < width; i += blockDim.x) x[(u64)row * stride + i] += bias[i];
}
