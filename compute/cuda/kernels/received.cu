// received: what every key received of the attention of all rows that see it: probabilities, summed over rows and
// query heads. Units are those of attend.cu, each a whole tile. The sums of the rows' softmax are attend.cu's own. Sums
// are in fixed point (FRACTION bits), so that the order in which blocks end changes nothing. Scores as in
// attend_ampere.cuh: one layer of a pass needs it.
// check: HEADS=12 KV_HEADS=2 HEAD_DIM=128
// check: HEADS=4 KV_HEADS=2 HEAD_DIM=64
// check: HEADS=3 KV_HEADS=3 HEAD_DIM=80
#include "grebe.cuh"
#include "attend.cuh"
#include "attend_mma.cuh"

#define FRACTION 32
#define WARPS 8

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

// Adds up n values of 8 lanes that differ in the bits 4, 8 and 16 of their number. Lanes halve what they have at each
// step: lane l is left with the sums of v[n/8·k] … for k = l/16%2·4 + l/8%2·2 + l/4%2.
template <int N, int BIT> DEVICE void add_lanes(float (&v)[16]) {
  bool upper = threadIdx.x & BIT;
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    float other = shuffle_xor(upper ? v[i] : v[i + N / 2], BIT);
    v[i] = (upper ? v[i + N / 2] : v[i]) + other;
  }
}

// The logarithm of a row's sum; rows beyond the tile's tokens have probabilities of 0.
DEVICE float log_of(const float* logs, const Unit& u, int row) {
  if (row / GROUP >= u.tokens()) return -MINUS_INF;
  return logs[(u64)(u.row + row / GROUP) * HEADS + u.head() * GROUP + row % GROUP];
}

KERNEL void __launch_bounds__(256, 2)
    received(u64* sums, const int* list, float scale, int buffer, const float* logs, const bf16* queries, int query_stride, const bf16* scratch, int slots) {
  extern __shared__ __align__(128) u8 memory[]; // the queries, or two stages of keys
  __shared__ F2 columns[WARPS][KEYS / 2];
  u32 shared = shared_address(memory);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = warp * 16 + lane / 4;
  int first = list[LIST_BLOCKS + 2 * blockIdx.x], units = list[LIST_BLOCKS + 2 * blockIdx.x + 1];
  Scratch from = {scratch, slots};
  for (int n = 0; n < units; n++) {
    Unit u = load_unit(list, first + n);
    int matrix = (buffer * KV_HEADS + u.head()) * 2;
    load_queries(shared, queries, query_stride, u);
    copies_commit();
    float b0 = log_of(logs, u, row), b1 = log_of(logs, u, row + 8);
    copies_wait<0>();
    __syncthreads();
    u32 q[HEAD_DIM / 4];
#pragma unroll
    for (int c = 0; c < HEAD_DIM / 16; c++)
      load_fragments(q + 4 * c, shared + (warp * 16 + (lane & 7) + (lane >> 3 & 1) * 8) * ROW_BYTES + c * 32 + (lane >> 4) * 16);
    __syncthreads();
    Walk ahead = walk(list, u), w = ahead;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (ahead.span < u.spans) {
        load_keys(shared + i * KEYS * ROW_BYTES, from, matrix, ahead.start);
        advance(ahead, list, u);
      }
      copies_commit();
    }
    for (int i = 0; w.span < u.spans; i++) {
      u32 keys = shared + (i & 1) * KEYS * ROW_BYTES;
      copies_wait<1>();
      __syncthreads(); // the keys are there, and the columns of the step before are added up
      float s[KEYS / 2], v[KEYS / 4];
      step_products(s, q, keys);
      mask_scores(s, w, u, list, row);
#pragma unroll
      for (int k = 0; k < KEYS / 4; k++) // of the columns 8·(k/2) + 2·(lane%4) + k%2
        v[k] = exp2_fast(s[4 * (k / 2) + k % 2] * scale - b0) + exp2_fast(s[4 * (k / 2) + 2 + k % 2] * scale - b1);
      add_lanes<16, 16>(v);
      add_lanes<8, 8>(v);
      add_lanes<4, 4>(v);
      columns[warp][4 * ((lane >> 4) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1)) + (lane & 3)] = F2{v[0], v[1]};
      __syncthreads(); // the columns are there, and nobody needs these keys any more
      if (ahead.span < u.spans) {
        load_keys(keys, from, matrix, ahead.start);
        advance(ahead, list, u);
      }
      copies_commit();
      int key = threadIdx.x;
      if (key < KEYS && w.start + key < w.end) {
        float p = 0;
#pragma unroll
        for (int k = 0; k < WARPS; k++) p += ((const float*)columns[k])[key];
        if (p > 0) add_fixed(sums + w.start + key, p);
      }
      advance(w, list, u);
    }
    __syncthreads();
  }
}
