// received_direct: received.cu straight from the chunks, for all formats and head sizes, and to hold that against. A
// warp per row and head goes through its keys as in attend_direct.cu, twice.
//
// sums has a value for each row of the batch, in fixed point as in received.cu.
// check: Q=1 KV=1 HEADS=12 KV_HEADS=2 DIM=128
// check: Q=0 KV=0 HEADS=3 KV_HEADS=1 DIM=6
// check: Q=1 KV=3 HEADS=4 KV_HEADS=2 DIM=64
#include "grebe.cuh"
#include "load.cuh"
#include "home.cuh"

#define FRACTION 32

struct Sight {
  int spans; // index of the first
  int keys;
  int from;
  float scale;
};

struct Tables {
  const Span* spans;
};

DEVICE void add_fixed(u64* to, float v) {
  u64 fixed = (u64)((double)v * (double)(1ull << FRACTION) + 0.5);
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(fixed) : "memory");
}

KERNEL void __launch_bounds__(128) received_direct(u64* sums, const u8* q, const Sight* sights, const Tables* tables, const int* rows, int q_stride, int layer, float scale) {
  __shared__ float query[4][DIM];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  int head = blockIdx.y * 4 + warp, row = blockIdx.x;
  if (row >= *rows || head >= HEADS) return;
  for (int d = lane; d < DIM; d += 32) query[warp][d] = load1<Q>(q + ((u64)row * q_stride + head * DIM) * (Q == 0 ? 4 : 2), d);
  __syncwarp();
  int group = head / (HEADS / KV_HEADS);
  float most = -1e30f, total = 0;
  for (int turn = 0; turn < 2; turn++) {
    int left = sights[row].keys;
    for (const Span* s = tables->spans + sights[row].spans; left > 0; s++) {
      int count = min_i(s->count, left);
      left -= count;
      const u8* keys = head_of<KV>(s->chunk, s->tokens, layer, group, KV_HEADS, DIM * SIZE_OF(KV));
      float key_scale = KV == FP8 ? scale * *(const float*)(keys - SCALE_BYTES(KV)) : scale;
      for (int base = 0; base < count; base += 32) {
        int k = base + lane;
        float score = -1e30f;
        if (k < count) {
          score = 0;
          for (int d = 0; d < DIM; d++) score += query[warp][d] * load1<KV>(keys, (u64)k * DIM + d);
          score *= key_scale;
        }
        if (turn == 0) {
          float now = max_f(most, warp_max(score));
          total = total * exp_fast(most - now) + warp_sum(k < count ? exp_fast(score - now) : 0.0f);
          most = now;
        } else if (k < count && k >= s->cached) {
          add_fixed(sums + s->row + k, exp_fast(score - most) / total);
        }
      }
    }
  }
}
