// received: what every key received of the attention of all rows that see it: probabilities, summed over rows and
// query heads. Units are those of attend.cu, each a whole tile: a block goes through its keys twice, first for the
// sums of the softmax, then for the probabilities. Sums are in fixed point (FRACTION bits), so that the order in which
// blocks end changes nothing. Scores as in attend_ampere.cuh: one layer of a pass needs it.
// check: HEADS=12 KV_HEADS=2 HEAD_DIM=128
// check: HEADS=4 KV_HEADS=2 HEAD_DIM=64
// check: HEADS=3 KV_HEADS=3 HEAD_DIM=80
#include "grebe.cuh"
#include "attend.cuh"
#include "attend_mma.cuh"

#define FRACTION 32
#define WARPS 8

DEVICE float log2_fast(float x) { float y; asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE void add_fixed(u64* to, float v) {
  u64 fixed = (u64)((double)v * (double)(1ull << FRACTION) + 0.5);
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(fixed) : "memory");
}
DEVICE void load_keys(u32 to, const Scratch& from, int matrix, int start) {
  for (int i = threadIdx.x; i < KEYS * PIECES; i += 256) {
    int row = i / PIECES, piece = i % PIECES, slot = min_i(start + row, from.slots - 1);
    copy16(to + row * ROW_BYTES + piece * 16, from.at + ((u64)matrix * from.slots + slot) * HEAD_DIM + piece * 8);
  }
}

// Goes through the keys of a unit, two stages in turns, and calls each(scores, walk) for every step.
template <class F>
DEVICE void each_step(const Scratch& from, const Unit& u, const int* list, u32 shared, int matrix, const u32 (&q)[HEAD_DIM / 4], int row, F each) {
  Walk ahead = walk(list, u), w = ahead;
  load_keys(shared, from, matrix, ahead.start);
  copies_commit();
  advance(ahead, list, u);
  for (int i = 0; w.span < u.spans; i++) {
    if (ahead.span < u.spans) {
      load_keys(shared + (i + 1 & 1) * KEYS * ROW_BYTES, from, matrix, ahead.start);
      advance(ahead, list, u);
    }
    copies_commit();
    copies_wait<1>();
    __syncthreads();
    float s[KEYS / 2];
    step_products(s, q, shared + (i & 1) * KEYS * ROW_BYTES);
    mask_scores(s, w, u, list, row);
    each(s, w);
    advance(w, list, u);
    __syncthreads();
  }
}

KERNEL void __launch_bounds__(256, 1) received(u64* sums, const int* list, float scale, int buffer, const bf16* queries, int query_stride, const bf16* scratch, int slots) {
  extern __shared__ __align__(128) u8 memory[]; // the queries, or two stages of keys
  __shared__ float columns[WARPS][KEYS];
  u32 shared = shared_address(memory);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = warp * 16 + lane / 4;
  int first = list[LIST_BLOCKS + 2 * blockIdx.x], units = list[LIST_BLOCKS + 2 * blockIdx.x + 1];
  Scratch from = {scratch, slots};
  for (int n = 0; n < units; n++) {
    Unit u = load_unit(list, first + n);
    int matrix = (buffer * KV_HEADS + u.head()) * 2;
    load_queries(shared, queries, query_stride, u);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    u32 q[HEAD_DIM / 4];
#pragma unroll
    for (int c = 0; c < HEAD_DIM / 16; c++)
      load_fragments(q + 4 * c, shared + (warp * 16 + (lane & 7) + (lane >> 3 & 1) * 8) * ROW_BYTES + c * 32 + (lane >> 4) * 16);
    __syncthreads();
    Softmax x = {MINUS_INF, MINUS_INF, 0, 0, 0, 0};
    each_step(from, u, list, shared, matrix, q, row, [&](float (&s)[KEYS / 2], const Walk&) { soften(s, x, scale); });
    x.l0 += shuffle_xor(x.l0, 1);
    x.l1 += shuffle_xor(x.l1, 1);
    x.l0 += shuffle_xor(x.l0, 2);
    x.l1 += shuffle_xor(x.l1, 2);
    // Probabilities are 2^(score·scale − b). Rows beyond the tile's tokens get none.
    float b0 = row / GROUP < u.tokens() ? x.m0 * scale + log2_fast(x.l0) : -MINUS_INF;
    float b1 = (row + 8) / GROUP < u.tokens() ? x.m1 * scale + log2_fast(x.l1) : -MINUS_INF;
    each_step(from, u, list, shared, matrix, q, row, [&](float (&s)[KEYS / 2], const Walk& w) {
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float p = exp2_fast(s[4 * j + e] * scale - b0) + exp2_fast(s[4 * j + 2 + e] * scale - b1);
          p += shuffle_xor(p, 4);
          p += shuffle_xor(p, 8);
          p += shuffle_xor(p, 16);
          if (lane < 4) columns[warp][8 * j + 2 * lane + e] = p;
        }
      }
      __syncthreads();
      int key = threadIdx.x;
      if (key < KEYS && w.start + key < w.end) {
        float p = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) p += columns[i][key];
        if (p > 0) add_fixed(sums + w.start + key, p);
      }
    });
  }
}
