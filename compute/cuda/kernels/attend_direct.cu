// attend_direct: out = softmax(q·kᵀ/√DIM)·v, straight from the chunks and written to be obviously
// right: for all formats and head sizes, and to hold faster kernels against. A warp per row and head; a
// lane per key for the scores, a lane per dimension for the sums, both in float.
//
// Q is the format of q, KV of the chunks, OUT of the result. A row sees the first keys keys of the
// spans that begin at Sight.spans. With POINTWISE the result is HSTU's, Sight.scale·Σ SiLU(scale·q·k)·v, and
// keys whose place is before Sight.from are hidden; places are positions, with CONTEXT those behind it.
// check: Q=1 KV=1 OUT=1 HEADS=12 KV_HEADS=2 DIM=128
// check: Q=0 KV=0 OUT=0 HEADS=3 KV_HEADS=1 DIM=6
// check: Q=0 KV=0 OUT=1 HEADS=3 KV_HEADS=3 DIM=80
// check: Q=0 KV=3 OUT=1 HEADS=3 KV_HEADS=1 DIM=6
// check: Q=0 KV=0 OUT=0 HEADS=3 KV_HEADS=3 DIM=6 POINTWISE=1 CONTEXT=3
#include "grebe.cuh"
#include "load.cuh"
#include "home.cuh"

#ifndef POINTWISE
#define POINTWISE 0
#define CONTEXT 0
#endif

struct Sight {
  int spans; // index of the first
  int keys;
  int from;
  float scale;
};

DEVICE int place_of(int position) { return CONTEXT == 0 ? position : max_i(0, position - CONTEXT + 1); }

struct Tables {
  const Span* spans; // whose place may change between batches
};

#define PARTS ((DIM + 31) / 32)

KERNEL void __launch_bounds__(128) attend_direct(u8* out, const u8* q, const Sight* sights, const Tables* tables, const int* rows,
                                                int q_stride, int out_stride, int layer, float scale) {
  const int q_size = Q == 0 ? 4 : 2, out_size = OUT == 0 ? 4 : 2, kv_size = SIZE_OF(KV);
  __shared__ float query[4][DIM];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  int head = blockIdx.y * 4 + warp, row = blockIdx.x;
  wait_for_previous();
  allow_next();
  if (row >= *rows || head >= HEADS) return;
  for (int d = lane; d < DIM; d += 32) query[warp][d] = load1<Q>(q + ((u64)row * q_stride + head * DIM) * q_size, d);
  __syncwarp();
  int group = head / (HEADS / KV_HEADS), left = sights[row].keys;
  float sum[PARTS];
#if !POINTWISE
  float most = -1e30f, total = 0;
#else
  const float total = 1;
#endif
#pragma unroll
  for (int p = 0; p < PARTS; p++) sum[p] = 0;
  for (const Span* s = tables->spans + sights[row].spans; left > 0; s++) {
    int count = min_i(s->count, left);
    left -= count;
    const u8* keys = head_of<KV>(s->chunk, s->tokens, layer, group, KV_HEADS, DIM * kv_size);
    const u8* values = head_of<KV>(s->chunk, s->tokens, layer, KV_HEADS + group, KV_HEADS, DIM * kv_size);
    float key_scale = scale, value_scale = 1;
    if (KV == FP8) {
      key_scale *= *(const float*)(keys - SCALE_BYTES(KV));
      value_scale = *(const float*)(values - SCALE_BYTES(KV));
    }
    for (int base = 0; base < count; base += 32) {
      int n = min_i(32, count - base);
      float score = -1e30f;
      if (lane < n) {
        score = 0;
        for (int d = 0; d < DIM; d++) score += query[warp][d] * load1<KV>(keys, (u64)(base + lane) * DIM + d);
        score *= key_scale;
      }
#if POINTWISE
      float p = lane < n && place_of(s->start + base + lane) >= sights[row].from ? silu(score) : 0.0f;
#else
      float now = max_f(most, warp_max(score));
      float p = lane < n ? exp_fast(score - now) : 0.0f;
      float old = exp_fast(most - now);
      most = now;
      total = total * old + warp_sum(p);
#pragma unroll
      for (int i = 0; i < PARTS; i++) sum[i] *= old;
#endif
      for (int k = 0; k < n; k++) {
        float w = shuffle_from(p, k) * value_scale;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
          int d = i * 32 + lane;
          if (d < DIM) sum[i] += w * load1<KV>(values, (u64)(base + k) * DIM + d);
        }
      }
    }
  }
  float factor = POINTWISE ? sights[row].scale : 1 / total;
#pragma unroll
  for (int i = 0; i < PARTS; i++) {
    int d = i * 32 + lane;
    if (d < DIM) store1<OUT>(out + ((u64)row * out_stride + head * DIM) * out_size, d, sum[i] * factor);
  }
}
