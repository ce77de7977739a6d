// rms_norm: out[i] = x[row i] / rms · gain, rounded to OUT; without gain, x itself. A block per row, 8
// columns per thread; the gain is read while the kernel before this one still runs. Runs against memory
// bandwidth, for few rows against the latency of one read and two barriers.
//
// Row i is i, or index[i] where there is an index. x and out have STRIDE columns, a multiple of 16, of
// which width are the model's; the others of out become zero. The block has THREADS threads.
//
// With OUT 3 rows are rounded to e4m3, each with a scale of its own, which goes to scales. With ADD, a product of
// FP8 is added to x first: delta by its input's scale and by that of its column, and bias, if there is one.
// check: OUT=1 STRIDE=1536 THREADS=192
// check: OUT=0 STRIDE=48 THREADS=32
// check: OUT=1 STRIDE=16384 THREADS=1024
// check: OUT=3 STRIDE=1536 THREADS=192
// check: OUT=3 STRIDE=1536 THREADS=192 ADD=1
// check: OUT=1 STRIDE=48 THREADS=32 ADD=1
#include "grebe.cuh"
#include "load.cuh"

#define TURNS ((STRIDE + 8 * THREADS - 1) / (8 * THREADS))

KERNEL void __launch_bounds__(THREADS) rms_norm(u8* out, float* x, const float* gain, const int* index,
                                               const int* rows, int width, float eps
#if OUT == FP8
                                               , float* scales
#endif
#if ADD
                                               , const bf16* delta, const float* row_scale, const float* col_scale,
                                               const float* bias
#endif
) {
  __shared__ float scratch[66];
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
  float* from = x + (u64)(index ? index[i] : i) * STRIDE;
  float sum = 0, most = 0; // the largest magnitude, before it is scaled
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int c = (t * THREADS + threadIdx.x) * 8;
    if (c >= STRIDE) break;
    load8<0>(from + c, v[t]);
#if ADD
    float d[8], s[8], b[8] = {0, 0, 0, 0, 0, 0, 0, 0}, by = row_scale[i];
    load8<1>(delta + (u64)i * STRIDE + c, d);
    load8<0>(col_scale + c, s);
    if (bias) load8<0>(bias + c, b);
#pragma unroll
    for (int k = 0; k < 8; k++) v[t][k] += d[k] * s[k] * by + b[k];
    store8<0>(from + c, v[t]);
#endif
#pragma unroll
    for (int k = 0; k < 8; k++) {
      sum += v[t][k] * v[t][k];
      if (OUT == FP8) most = max_nan(most, abs_f(gain ? v[t][k] * g[t][k] : v[t][k]));
    }
  }
  float scale = 1;
#if OUT == FP8
  block_sum_max(sum, most, scratch);
  if (gain) scale = rsqrt_exact(sum / (float)width + eps);
  Rounding r = rounding(most * scale);
  if (threadIdx.x == 0) scales[i] = r.scale;
#else
  if (gain) scale = rsqrt_exact(block_sum(sum, scratch) / (float)width + eps);
#endif
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int c = (t * THREADS + threadIdx.x) * 8;
    if (c >= STRIDE) break;
    if (gain)
#pragma unroll
      for (int k = 0; k < 8; k++) v[t][k] = v[t][k] * scale * g[t][k];
#if OUT == FP8
    store8_e4m3(out + (u64)i * STRIDE + c, v[t], r.inverse);
#else
    store8<OUT>(out + ((u64)i * STRIDE + c) * SIZE_OF(OUT), v[t]);
#endif
  }
}
