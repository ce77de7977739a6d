// layer_norm: out[row] = (x[row] − mean) / deviation · gain + shift, rounded to OUT; gain and shift may be
// nil. A block per row, 8 columns per thread, which it keeps in registers from the mean to the end. Runs
// against memory bandwidth.
//
// x and out have STRIDE columns, a multiple of 16, of which width are the model's; the others of out become
// zero. The block has THREADS threads.
// check: OUT=1 STRIDE=512 THREADS=64
// check: OUT=0 STRIDE=48 THREADS=32
#include "grebe.cuh"
#include "load.cuh"

#define TURNS ((STRIDE + 8 * THREADS - 1) / (8 * THREADS))

KERNEL void __launch_bounds__(THREADS) layer_norm(u8* out, const float* x, const float* gain, const float* shift, const int* rows, int width, float eps) {
  __shared__ float scratch[33];
  int row = blockIdx.x;
  wait_for_previous();
  allow_next();
  if (row >= *rows) return;
  float v[TURNS][8], sum = 0, square = 0;
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int c = (t * THREADS + threadIdx.x) * 8;
    if (c >= STRIDE) break;
    load8<0>(x + (u64)row * STRIDE + c, v[t]); // zeros beyond the width
#pragma unroll
    for (int k = 0; k < 8; k++) sum += v[t][k];
  }
  float mean = block_sum(sum, scratch) / (float)width;
  __syncthreads();
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int c = (t * THREADS + threadIdx.x) * 8;
    if (c >= STRIDE) break;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      v[t][k] = c + k < width ? v[t][k] - mean : 0.0f;
      square += v[t][k] * v[t][k];
    }
  }
  float scale = rsqrt_exact(block_sum(square, scratch) / (float)width + eps);
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int c = (t * THREADS + threadIdx.x) * 8;
    if (c >= STRIDE) break;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      v[t][k] *= scale;
      if (gain && c + k < width) v[t][k] *= gain[c + k];
      if (shift && c + k < width) v[t][k] += shift[c + k];
    }
    store8<OUT>(out + ((u64)row * STRIDE + c) * SIZE_OF(OUT), v[t]);
  }
}
