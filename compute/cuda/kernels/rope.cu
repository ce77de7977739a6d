// rope: finishes the QKV product. Adds the bias, norms and rotates the heads of queries and keys,
// writes queries to q and keys and values to their chunks. Runs against memory bandwidth.
//
// A block takes one row and as many heads as fit its 128 threads: a thread has STEP pairs of a head that
// lie together, 8 where that divides a head evenly among the lanes of a warp, and a head's LANES threads
// are neighbours; elsewhere a warp takes a head.
//
// With SCRATCH, keys and values go to attention's scratch as well, [KV head][k|v][slot][dim] in bf16, at
// the slot that word row of the words from list[list[7]] on names.
//
// Chunks in e4m3 (KV 3) have a scale for each head, which the chunk's first token fixes. Where that is a row
// of this launch, every row of the chunk computes the first one's vector again, from the product: it is in
// the cache, and nobody has to wait for anybody.
//
// Values that are no finite numbers become zeros, and their keys NaN: so they show in all rows that see
// them, and in no other, as attention multiplies the values of keys that a row does not see by 0.
//
// IN is the format of the product, Q of q, KV of the chunks. The product's rows have stride columns:
// HEADS query heads, KV_HEADS key heads, KV_HEADS value heads of DIM values each. Rows of q have
// q_stride columns.
//
// With SCALED the product is one of FP8: its rows and columns have scales.
// check: IN=1 Q=1 KV=1 HEADS=12 KV_HEADS=2 DIM=128
// check: IN=1 Q=1 KV=1 HEADS=12 KV_HEADS=2 DIM=128 SCRATCH=1
// check: IN=0 Q=0 KV=0 HEADS=5 KV_HEADS=1 DIM=16
// check: IN=0 Q=0 KV=1 HEADS=3 KV_HEADS=1 DIM=6
// check: IN=0 Q=0 KV=0 HEADS=3 KV_HEADS=3 DIM=80
// check: IN=1 Q=1 KV=3 HEADS=12 KV_HEADS=2 DIM=128 SCRATCH=1
// check: IN=0 Q=0 KV=3 HEADS=3 KV_HEADS=1 DIM=6
// check: IN=1 Q=1 KV=3 HEADS=12 KV_HEADS=2 DIM=128 SCRATCH=1 SCALED=1
// check: IN=0 Q=0 KV=0 HEADS=3 KV_HEADS=1 DIM=6 SCALED=1
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
  if (F == FP8) {
    if (STEP == 8) {
      u32 w[2] = {0, 0};
#pragma unroll
      for (int k = 0; k < STEP; k++) w[k / 4 % 2] |= to_e4m3(v[k]) << k % 4 * 8;
      *(U2*)(p + i) = U2{w[0], w[1]};
      return;
    }
#pragma unroll
    for (int k = 0; k < STEP; k++) p[i + k] = to_e4m3(v[k]);
    return;
  }
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

DEVICE float head_max(float v) {
#pragma unroll
  for (int m = LANES / 2; m > 0; m >>= 1) v = max_f(v, shuffle_xor(v, m));
  return v;
}

// Head is a thread's part of a row's head: pairs of values.
struct Head {
  float lo[TURNS][STEP], hi[TURNS][STEP];
};
#define EACH_VALUE                   \
  _Pragma("unroll")                  \
  for (int t = 0; t < TURNS; t++)    \
    _Pragma("unroll")                \
    for (int k = 0; k < STEP; k++)

// What a head is made from.
struct Source {
  const u8* in;
  int stride;
  const float *bias, *q_norm, *k_norm, *cosine, *sine;
  float eps;
#if SCALED
  const float *row_scale, *col_scale;
#endif
};

// The head of a row in the product, with its bias.
DEVICE void load_head(Head& h, const Source& s, int row, int head, int lane) {
  const u8* from = s.in + ((u64)row * s.stride + head * DIM) * SIZE_OF(IN);
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int i = (t * LANES + lane) * STEP;
    if (i >= HALF) {
#pragma unroll
      for (int k = 0; k < STEP; k++) h.lo[t][k] = h.hi[t][k] = 0;
      continue;
    }
    load_step<IN>(from, i, h.lo[t]);
    load_step<IN>(from, i + HALF, h.hi[t]);
#if SCALED
    float low[STEP], high[STEP], by = s.row_scale[row];
    load_floats(s.col_scale + head * DIM + i, low);
    load_floats(s.col_scale + head * DIM + i + HALF, high);
#pragma unroll
    for (int k = 0; k < STEP; k++) { h.lo[t][k] = h.lo[t][k] * low[k] * by; h.hi[t][k] = h.hi[t][k] * high[k] * by; }
#endif
    if (s.bias) {
      float a[STEP], b[STEP];
      load_floats(s.bias + head * DIM + i, a);
      load_floats(s.bias + head * DIM + i + HALF, b);
#pragma unroll
      for (int k = 0; k < STEP; k++) { h.lo[t][k] += a[k]; h.hi[t][k] += b[k]; }
    }
  }
}

// Norms and rotates it, unless it is a value. All threads of a warp MUST call it, whatever their heads.
DEVICE void finish_head(Head& h, const Source& s, int row, int head, int lane) {
  bool value = head >= HEADS + KV_HEADS;
  const float* gain = head < HEADS ? s.q_norm : s.k_norm;
  if (s.q_norm || s.k_norm) {
    float sum = 0;
    EACH_VALUE sum += h.lo[t][k] * h.lo[t][k] + h.hi[t][k] * h.hi[t][k];
    float scale = rsqrt_exact(head_sum(sum) / DIM + s.eps);
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      int i = (t * LANES + lane) * STEP;
      if (i < HALF && !value && gain)
#pragma unroll
        for (int k = 0; k < STEP; k++) {
          h.lo[t][k] *= scale * gain[i + k];
          h.hi[t][k] *= scale * gain[i + HALF + k];
        }
    }
  }
  if (value) return;
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int i = (t * LANES + lane) * STEP;
    if (i >= HALF) continue;
    float c[STEP], n[STEP];
    load_floats(s.cosine + (u64)row * HALF + i, c);
    load_floats(s.sine + (u64)row * HALF + i, n);
#pragma unroll
    for (int k = 0; k < STEP; k++) {
      float a = h.lo[t][k], b = h.hi[t][k];
      h.lo[t][k] = a * c[k] - b * n[k];
      h.hi[t][k] = b * c[k] + a * n[k];
    }
  }
}

DEVICE float largest(const Head& h) {
  float most = 0;
  EACH_VALUE most = max_f(most, max_f(abs_f(h.lo[t][k]), abs_f(h.hi[t][k])));
  return head_max(most);
}

// 1 where a value has something that bf16 has no finite number for.
DEVICE float endless(const Head& h) {
  float bad = 0;
  EACH_VALUE if (!(abs_f(h.lo[t][k]) < 3.38e38f) || !(abs_f(h.hi[t][k]) < 3.38e38f)) bad = 1;
  return bad;
}

// Takes out what would spread: see above. A key looks at its value in the product. As finish_head.
DEVICE void contain(Head& h, const Source& s, int row, int head, int lane) {
  bool key = head >= HEADS && head < HEADS + KV_HEADS, value = head >= HEADS + KV_HEADS;
  float bad = value ? endless(h) : 0.0f;
  if (key) {
    Head v;
    load_head(v, s, row, head + KV_HEADS, lane);
    bad = endless(v);
  }
  if (head_max(bad) == 0) return;
  if (value) EACH_VALUE h.lo[t][k] = h.hi[t][k] = 0;
  if (key) EACH_VALUE h.lo[t][k] = h.hi[t][k] = bits_f(0x7fc00000u);
}

// The scale of a head's chunk in e4m3. As finish_head.
DEVICE float chunk_scale(const Head& h, const Source& s, const Home* homes, int row, int head, int lane, u8* vectors) {
  int token = homes[row].token, first = row - token;
  if (token == 0) {
    float scale = scale_of(largest(h));
    if (head >= HEADS && lane == 0 && vectors) *(float*)(vectors - SCALE_BYTES(FP8)) = scale;
    return scale;
  }
  if (first >= 0 && homes[first].chunk == homes[row].chunk && homes[first].token == 0) {
    Head f;
    load_head(f, s, first, head, lane);
    finish_head(f, s, first, head, lane);
    contain(f, s, first, head, lane);
    return scale_of(largest(f));
  }
  return vectors ? *(const float*)(vectors - SCALE_BYTES(FP8)) : 1.0f;
}

KERNEL void __launch_bounds__(128) rope(u8* q, const u8* in, const float* bias, const float* q_norm, const float* k_norm,
                                        const float* cosine, const float* sine, const Home* homes, const int* rows,
                                        int stride, int q_stride, int layer, float eps, u8* scratch, const int* list, int slots
#if SCALED
                                        , const float* row_scale, const float* col_scale
#endif
) {
  int head = blockIdx.y * BLOCK_HEADS + threadIdx.x / LANES, row = blockIdx.x, lane = threadIdx.x % LANES;
  wait_for_previous();
  allow_next();
  if (row >= *rows) return;
  bool none = head >= HEADS + 2 * KV_HEADS; // which takes part in the sums all the same
  if (none) head = 0;
  const Source s = {in, stride, bias, q_norm, k_norm, cosine, sine, eps
#if SCALED
    , row_scale, col_scale
#endif
  };
  Head h;
  load_head(h, s, row, head, lane);
  finish_head(h, s, row, head, lane);
  u8 *to = 0, *also = 0;
  float scale = 1, inverse = 1;
  if (blockIdx.y * BLOCK_HEADS + BLOCK_HEADS > HEADS) { // some of the block's heads are keys or values
    contain(h, s, row, head, lane);
    const Home home = homes[row];
    if (head >= HEADS) to = head_of<KV>(home.chunk, home.tokens, layer, head - HEADS, KV_HEADS, DIM * SIZE_OF(KV));
    if (KV == FP8) {
      scale = chunk_scale(h, s, homes, row, head, lane, to);
      inverse = 1.0f / scale;
    }
    if (to) to += (u64)home.token * (DIM * SIZE_OF(KV));
  }
  if (none) return;
  if (head < HEADS) to = q + ((u64)row * q_stride + head * DIM) * SIZE_OF(Q);
#if SCRATCH
  if (head >= HEADS) {
    int kv = head >= HEADS + KV_HEADS, at = head - HEADS - kv * KV_HEADS;
    also = scratch + (((u64)at * 2 + kv) * slots + list[list[7] + row]) * (DIM * 2);
  }
#endif
#pragma unroll
  for (int t = 0; t < TURNS; t++) {
    int i = (t * LANES + lane) * STEP;
    if (i >= HALF) continue;
    if (head < HEADS) {
      store_step<Q>(to, i, h.lo[t]);
      store_step<Q>(to, i + HALF, h.hi[t]);
      continue;
    }
    if (KV == FP8) {
#pragma unroll
      for (int k = 0; k < STEP; k++) {
        h.lo[t][k] = from_e4m3(to_e4m3(h.lo[t][k] * inverse));
        h.hi[t][k] = from_e4m3(to_e4m3(h.hi[t][k] * inverse));
      }
    }
    store_step<KV>(to, i, h.lo[t]);
    store_step<KV>(to, i + HALF, h.hi[t]);
    if (!also) continue;
    if (KV == FP8) {
#pragma unroll
      for (int k = 0; k < STEP; k++) { h.lo[t][k] *= scale; h.hi[t][k] *= scale; }
    }
    store_step<1>(also, i, h.lo[t]);
    store_step<1>(also, i + HALF, h.hi[t]);
  }
}
