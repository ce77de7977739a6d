// rms_norm: out[i] = x[row i] / rms · gain, rounded to OUT; without gain, x itself. A warp per row, which
// it holds in registers where it fits. Runs against memory bandwidth.
//
// Row i is i, or index[i] where there is an index. x and out have stride columns, a multiple of 16, of
// which width are the model's; the others of out become zero.
// check: OUT=1 STRIDE=1536
// check: OUT=0 STRIDE=48
// check: OUT=1 STRIDE=5120
#include "grebe.cuh"
#include "load.cuh"

#define GROUPS ((STRIDE + 255) / 256) // of 8 columns per lane
#define HELD (GROUPS <= 8)

KERNEL void __launch_bounds__(128) rms_norm(u8* out, const float* x, const float* gain, const int* index, const int* rows, int width, float eps) {
  const int size = OUT == 0 ? 4 : 2;
  int i = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  wait_for_previous();
  if (i >= *rows) return;
  const float* from = x + (u64)(index ? index[i] : i) * STRIDE;
  u8* to = out + (u64)i * STRIDE * size;
  float sum = 0;
#if HELD
  float v[GROUPS][8];
#pragma unroll
  for (int g = 0; g < GROUPS; g++) {
    int c = (g * 32 + lane) * 8;
    if (c < STRIDE) load8<0>(from + c, v[g]);
  }
#pragma unroll
  for (int g = 0; g < GROUPS; g++)
    if ((g * 32 + lane) * 8 < STRIDE)
#pragma unroll
      for (int k = 0; k < 8; k++) sum += v[g][k] * v[g][k];
#else
  for (int c = lane * 8; c < STRIDE; c += 256) {
    float v[8];
    load8<0>(from + c, v);
#pragma unroll
    for (int k = 0; k < 8; k++) sum += v[k] * v[k];
  }
#endif
  float scale = rsqrt_exact(warp_sum(sum) / (float)width + eps);
#pragma unroll
  for (int g = 0; g < GROUPS; g++) {
    int c = (g * 32 + lane) * 8;
    if (c >= STRIDE) break;
    float w[8];
#if HELD
#pragma unroll
    for (int k = 0; k < 8; k++) w[k] = v[g][k];
#else
    load8<0>(from + c, w);
#endif
    if (gain) {
      float f[8];
      load8<0>(gain + c, f);
#pragma unroll
      for (int k = 0; k < 8; k++) w[k] = w[k] * scale * f[k];
    }
    store8<OUT>(to + c * size, w);
  }
}
