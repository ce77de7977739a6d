// rope: finishes the QKV product. Adds the bias, norms and rotates the heads of queries and keys,
// writes queries to q and keys and values to their chunks. A warp per row and head; runs against
// memory bandwidth.
//
// With SCRATCH, keys and values go to attention's scratch as well, [KV head][k|v][slot][dim], at the slot
// that word row of the words from list[list[7]] on names.
//
// IN is the format of the product, Q of q, KV of the chunks. The product's rows have stride columns:
// HEADS query heads, KV_HEADS key heads, KV_HEADS value heads of DIM values each. Rows of q have
// q_stride columns.
// check: IN=1 Q=1 KV=1 HEADS=12 KV_HEADS=2 DIM=128
// check: IN=1 Q=1 KV=1 HEADS=12 KV_HEADS=2 DIM=128 SCRATCH=1
// check: IN=0 Q=0 KV=1 HEADS=3 KV_HEADS=1 DIM=6
// check: IN=0 Q=0 KV=0 HEADS=3 KV_HEADS=3 DIM=80
#include "grebe.cuh"
#include "load.cuh"
#include "home.cuh"

#define HALF (DIM / 2)
#define STEP (HALF % 2 == 0 ? 2 : 1) // pairs that a lane takes together
#define TURNS ((HALF + 32 * STEP - 1) / (32 * STEP))

template <int FORMAT>
DEVICE void load_step(const u8* p, int i, float* v) {
  if (STEP == 1) { v[0] = load1<FORMAT>(p, i); return; }
  if (FORMAT == 0) { F2 a = *(const F2*)(p + 4 * i); v[0] = a.x; v[STEP - 1] = a.y; return; }
  u32 a = *(const u32*)(p + 2 * i);
  v[0] = low_bf16(a);
  v[STEP - 1] = high_bf16(a);
}

template <int FORMAT>
DEVICE void store_step(u8* p, int i, const float* v) {
  if (STEP == 1) { store1<FORMAT>(p, i, v[0]); return; }
  if (FORMAT == 0) { F2 a = {v[0], v[STEP - 1]}; *(F2*)(p + 4 * i) = a; return; }
  *(u32*)(p + 2 * i) = pack_bf16(v[0], v[STEP - 1]);
}

KERNEL void __launch_bounds__(128) rope(u8* q, const u8* in, const float* bias, const float* q_norm, const float* k_norm,
                                        const float* cosine, const float* sine, const Home* homes, const int* rows,
                                        int stride, int q_stride, int layer, float eps, u8* scratch, const int* list, int slots) {
  const int in_size = IN == 0 ? 4 : 2, q_size = Q == 0 ? 4 : 2, kv_size = KV == 0 ? 4 : 2;
  int head = blockIdx.y * 4 + (threadIdx.x >> 5), row = blockIdx.x, lane = threadIdx.x & 31;
  wait_for_previous();
  allow_next();
  if (row >= *rows || head >= HEADS + 2 * KV_HEADS) return;
  const u8* from = in + ((u64)row * stride + head * DIM) * in_size;
  float lo[TURNS][STEP], hi[TURNS][STEP];
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int i = (t * 32 + lane) * STEP;
    if (i >= HALF) {
#pragma unroll
      for (int k = 0; k < STEP; k++) lo[t][k] = hi[t][k] = 0;
      continue;
    }
    load_step<IN>(from, i, lo[t]);
    load_step<IN>(from, i + HALF, hi[t]);
    if (bias)
#pragma unroll
      for (int k = 0; k < STEP; k++) {
        lo[t][k] += bias[head * DIM + i + k];
        hi[t][k] += bias[head * DIM + i + HALF + k];
      }
  }
  bool value = head >= HEADS + KV_HEADS;
  const float* gain = head < HEADS ? q_norm : k_norm;
  if (!value && gain) {
    float sum = 0;
#pragma unroll
    for (int t = 0; t < TURNS; t++)
#pragma unroll
      for (int k = 0; k < STEP; k++) sum += lo[t][k] * lo[t][k] + hi[t][k] * hi[t][k];
    float scale = rsqrt_exact(warp_sum(sum) / DIM + eps);
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      int i = (t * 32 + lane) * STEP;
      if (i < HALF)
#pragma unroll
        for (int k = 0; k < STEP; k++) {
          lo[t][k] *= scale * gain[i + k];
          hi[t][k] *= scale * gain[i + HALF + k];
        }
    }
  }
  u8 *to, *also = 0;
#if SCRATCH
  if (head >= HEADS) {
    int kv = head >= HEADS + KV_HEADS, h = head - HEADS - kv * KV_HEADS;
    also = scratch + (((u64)h * 2 + kv) * slots + list[list[7] + row]) * (DIM * kv_size);
  }
#endif
  if (head < HEADS) to = q + ((u64)row * q_stride + head * DIM) * q_size;
  else to = home_of(&homes[row], layer, head - HEADS, KV_HEADS, DIM * kv_size);
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int i = (t * 32 + lane) * STEP;
    if (i >= HALF) continue;
    float a[STEP], b[STEP];
#pragma unroll
    for (int k = 0; k < STEP; k++) {
      a[k] = lo[t][k];
      b[k] = hi[t][k];
      if (!value) {
        float c = cosine[(u64)row * HALF + i + k], s = sine[(u64)row * HALF + i + k];
        a[k] = lo[t][k] * c - hi[t][k] * s;
        b[k] = hi[t][k] * c + lo[t][k] * s;
      }
    }
    if (head < HEADS) { store_step<Q>(to, i, a); store_step<Q>(to, i + HALF, b); }
    else { store_step<KV>(to, i, a); store_step<KV>(to, i + HALF, b); }
    if (also) { store_step<KV>(also, i, a); store_step<KV>(also, i + HALF, b); }
  }
}
