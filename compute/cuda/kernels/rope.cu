// rope: finishes the QKV product. Adds the bias, norms and rotates the heads of queries and keys,
// writes queries to q and keys and values to their chunks. Runs against memory bandwidth.
//
// A block takes one row and as many heads as fit its 128 threads: a thread has STEP pairs of a head that
// lie together, 8 where that divides a head evenly among the lanes of a warp, and a head's LANES threads
// are neighbours; elsewhere a warp takes a head.
//
// With SCRATCH, keys and values go to attention's scratch as well, [KV head][k|v][slot][dim], at the slot
// that word row of the words from list[list[7]] on names.
//
// IN is the format of the product, Q of q, KV of the chunks. The product's rows have stride columns:
// HEADS query heads, KV_HEADS key heads, KV_HEADS value heads of DIM values each. Rows of q have
// q_stride columns.
// check: IN=1 Q=1 KV=1 HEADS=12 KV_HEADS=2 DIM=128
// check: IN=1 Q=1 KV=1 HEADS=12 KV_HEADS=2 DIM=128 SCRATCH=1
// check: IN=0 Q=0 KV=0 HEADS=5 KV_HEADS=1 DIM=16
// check: IN=0 Q=0 KV=1 HEADS=3 KV_HEADS=1 DIM=6
// check: IN=0 Q=0 KV=0 HEADS=3 KV_HEADS=3 DIM=80
#include "grebe.cuh"
#include "load.cuh"
#include "home.cuh"

#define HALF (DIM / 2)
#if HALF == 8 || HALF == 16 || HALF == 32 || HALF == 64 || HALF == 128
#define STEP 8 // pairs that a thread takes together
#define LANES (HALF / 8)
#define TURNS 1
#else
#define STEP (2 - HALF % 2)
#define LANES 32
#define TURNS ((HALF + LANES * STEP - 1) / (LANES * STEP))
#endif
#define BLOCK_HEADS (128 / LANES)

template <int F>
DEVICE void load_step(const u8* p, int i, float* v) {
  if (STEP == 8) { load8<F>(p + i * (F == 0 ? 4 : 2), v); return; }
  if (STEP == 1) { v[0] = load1<F>(p, i); return; }
  if (F == 0) { F2 a = *(const F2*)(p + 4 * i); v[0] = a.x; v[STEP - 1] = a.y; return; }
  u32 a = *(const u32*)(p + 2 * i);
  v[0] = low_bf16(a);
  v[STEP - 1] = high_bf16(a);
}

template <int F>
DEVICE void store_step(u8* p, int i, const float* v) {
  if (STEP == 8) { store8<F>(p + i * (F == 0 ? 4 : 2), v); return; }
  if (STEP == 1) { store1<F>(p, i, v[0]); return; }
  if (F == 0) { F2 a = {v[0], v[STEP - 1]}; *(F2*)(p + 4 * i) = a; return; }
  *(u32*)(p + 2 * i) = pack_bf16(v[0], v[STEP - 1]);
}

// Floats of a table, aligned as the pairs are.
DEVICE void load_floats(const float* p, float* v) {
#if STEP == 8
  load8<0>(p, v);
#else
#pragma unroll
  for (int k = 0; k < STEP; k++) v[k] = p[k];
#endif
}

// Sum over the threads of a head.
DEVICE float head_sum(float v) {
#pragma unroll
  for (int m = LANES / 2; m > 0; m >>= 1) v += shuffle_xor(v, m);
  return v;
}

KERNEL void __launch_bounds__(128) rope(u8* q, const u8* in, const float* bias, const float* q_norm, const float* k_norm,
                                        const float* cosine, const float* sine, const Home* homes, const int* rows,
                                        int stride, int q_stride, int layer, float eps, u8* scratch, const int* list, int slots) {
  const int in_size = IN == 0 ? 4 : 2, q_size = Q == 0 ? 4 : 2, kv_size = KV == 0 ? 4 : 2;
  int head = blockIdx.y * BLOCK_HEADS + threadIdx.x / LANES, row = blockIdx.x, lane = threadIdx.x % LANES;
  wait_for_previous();
  allow_next();
  if (row >= *rows) return;
  bool none = head >= HEADS + 2 * KV_HEADS; // which takes part in the sums all the same
  if (none) head = 0;
  const u8* from = in + ((u64)row * stride + head * DIM) * in_size;
  float lo[TURNS][STEP], hi[TURNS][STEP];
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int i = (t * LANES + lane) * STEP;
    if (i >= HALF) {
#pragma unroll
      for (int k = 0; k < STEP; k++) lo[t][k] = hi[t][k] = 0;
      continue;
    }
    load_step<IN>(from, i, lo[t]);
    load_step<IN>(from, i + HALF, hi[t]);
    if (bias) {
      float a[STEP], b[STEP];
      load_floats(bias + head * DIM + i, a);
      load_floats(bias + head * DIM + i + HALF, b);
#pragma unroll
      for (int k = 0; k < STEP; k++) { lo[t][k] += a[k]; hi[t][k] += b[k]; }
    }
  }
  bool value = head >= HEADS + KV_HEADS;
  const float* gain = head < HEADS ? q_norm : k_norm;
  if (q_norm || k_norm) { // all threads of a warp, whatever their heads
    float sum = 0;
#pragma unroll
    for (int t = 0; t < TURNS; t++)
#pragma unroll
      for (int k = 0; k < STEP; k++) sum += lo[t][k] * lo[t][k] + hi[t][k] * hi[t][k];
    float scale = rsqrt_exact(head_sum(sum) / DIM + eps);
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      int i = (t * LANES + lane) * STEP;
      if (i < HALF && !value && gain)
#pragma unroll
        for (int k = 0; k < STEP; k++) {
          lo[t][k] *= scale * gain[i + k];
          hi[t][k] *= scale * gain[i + HALF + k];
        }
    }
  }
  if (none) return;
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
    int i = (t * LANES + lane) * STEP;
    if (i >= HALF) continue;
    float a[STEP], b[STEP], c[STEP], s[STEP];
    load_floats(cosine + (u64)row * HALF + i, c);
    load_floats(sine + (u64)row * HALF + i, s);
#pragma unroll
    for (int k = 0; k < STEP; k++) {
      a[k] = value ? lo[t][k] : lo[t][k] * c[k] - hi[t][k] * s[k];
      b[k] = value ? hi[t][k] : hi[t][k] * c[k] + lo[t][k] * s[k];
    }
    if (head < HEADS) { store_step<Q>(to, i, a); store_step<Q>(to, i + HALF, b); }
    else { store_step<KV>(to, i, a); store_step<KV>(to, i + HALF, b); }
    if (also) { store_step<KV>(also, i, a); store_step<KV>(also, i + HALF, b); }
  }
}
