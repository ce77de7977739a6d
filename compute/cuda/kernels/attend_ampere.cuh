// The path of attend.cu without Hopper's instructions: 8 warps of 16 rows each, two stages of 64 keys.
#pragma once
#include "attend_mma.cuh"

DEVICE void step_values(float (&o)[SUMS], const float (&s)[KEYS / 2], u32 values) {
  int lane = threadIdx.x & 31;
  u32 at = values + ((lane & 7) + (lane >> 3 & 1) * 8) * ROW_BYTES + (lane >> 4) * 16;
#pragma unroll
  for (int c = 0; c < KEYS / 16; c++) {
    u32 p[4];
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] = pack_bf16(s[8 * c + 2 * i], s[8 * c + 2 * i + 1]);
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 16; n++) {
      u32 b[4];
      load_turned(b, at + c * 16 * ROW_BYTES + n * 32);
      product(o + 8 * n, p, b[0], b[1]);
      product(o + 8 * n + 4, p, b[2], b[3]);
    }
  }
}

KERNEL void __launch_bounds__(256, 1)
    attend(bf16* out, int stride, const int* list, F4* partials, int* counters, float scale, int buffer, float* logs,
           const bf16* queries, int query_stride, const bf16* scratch, int slots) {
  extern __shared__ __align__(128) u8 memory[];
  __shared__ int flag[2];
  u32 shared = shared_address(memory);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, half = warp >> 2, row = warp * 16 + lane / 4;
  wait_for_previous();
  int first = list[LIST_BLOCKS + 2 * blockIdx.x], units = list[LIST_BLOCKS + 2 * blockIdx.x + 1];
  Scratch from = {scratch, slots};
  for (int n = 0; n < units; n++) {
    Unit u = load_unit(list, first + n);
    int matrix = (buffer * KV_HEADS + u.head()) * 2;
    Walk ahead = walk(list, u), w = ahead;
    __syncthreads();
    load_queries(shared + STAGE_BYTES, queries, query_stride, u);
    copies_commit();
    load_step(shared, from, matrix, ahead.start);
    copies_commit();
    advance(ahead, list, u);
    copies_wait<1>();
    __syncthreads();
    u32 q[HEAD_DIM / 4];
#pragma unroll
    for (int c = 0; c < HEAD_DIM / 16; c++)
      load_fragments(q + 4 * c, shared + STAGE_BYTES + (warp * 16 + (lane & 7) + (lane >> 3 & 1) * 8) * ROW_BYTES + c * 32 + (lane >> 4) * 16);
    __syncthreads();
    Softmax x = {MINUS_INF, MINUS_INF, 0, 0, 0, 0};
    float o[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) o[i] = 0;
    for (int i = 0; w.span < u.spans; i++) {
      u32 stage = shared + (i & 1) * STAGE_BYTES;
      if (ahead.span < u.spans) {
        load_step(shared + (i + 1 & 1) * STAGE_BYTES, from, matrix, ahead.start);
        advance(ahead, list, u);
      }
      copies_commit();
      copies_wait<1>();
      __syncthreads();
      float s[KEYS / 2];
      step_products(s, q, stage);
      mask_scores(s, w, u, list, row);
      soften(s, x, scale);
      rescale(o, x);
      step_values(o, s, stage + KEYS * ROW_BYTES);
      advance(w, list, u);
      __syncthreads();
    }
    finish(o, x, scale, u, Output{out, partials, counters, stride, scales_of(list), logs}, Place{half, (int)(threadIdx.x & 127)}, 1 + half, &flag[half]);
  }
}
