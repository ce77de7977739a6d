// silu: out = silu(gate + bias) · (up + bias), for a feed-forward layer whose product is not fused.
// Reads [row][gate | up], writes [row][inter], 8 columns per thread; runs against memory bandwidth.
// The products are T, bf16 or float, as is the result. cols is a multiple of 8.
// check: T_BF16=1
// check: T_BF16=0
#include "grebe.cuh"

#if T_BF16
typedef bf16 T;
#else
typedef float T;
#endif

DEVICE void load8(const T* p, float* v) {
#if T_BF16
  U4 a = *(const U4*)p;
  u32 w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
  for (int i = 0; i < 4; i++) { v[2 * i] = low_bf16(w[i]); v[2 * i + 1] = high_bf16(w[i]); }
#else
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = p[i];
#endif
}

KERNEL void silu_up(T* out, const T* in, const float* bias, const int* rows, int cols) {
  int col = (blockIdx.x * blockDim.x + threadIdx.x) * 8, row = blockIdx.y;
  wait_for_previous();
  if (row >= *rows || col >= cols) return;
  const T* at = in + (u64)row * 2 * cols + col;
  float g[8], u[8];
  load8(at, g);
  load8(at + cols, u);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (bias) { g[i] += bias[col + i]; u[i] += bias[cols + col + i]; }
    g[i] = silu(g[i]) * u[i];
  }
  T* to = out + (u64)row * cols + col;
#if T_BF16
  U4 v = {pack_bf16(g[0], g[1]), pack_bf16(g[2], g[3]), pack_bf16(g[4], g[5]), pack_bf16(g[6], g[7])};
  *(U4*)to = v;
#else
#pragma unroll
  for (int i = 0; i < 8; i++) to[i] = g[i];
#endif
}
