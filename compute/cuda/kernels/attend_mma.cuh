// Scores by mma.m16n8k16, for GPUs without Hopper's instructions and for kernels that need nothing faster: 8 warps of
// 16 rows each go through 64 keys at a step.
#pragma once

// Shared memory: two stages of 64 keys and 64 values. Rows are 16 bytes longer than a vector, so that the 8
// rows of a fragment lie in different banks. The queries pass through the second stage into registers.
#define ROW_BYTES (HEAD_DIM * 2 + 16)
#define KEYS 64
#define STAGE_BYTES (2 * KEYS * ROW_BYTES)
#define PIECES (HEAD_DIM / 8) // of 16 bytes in a vector

DEVICE void copy16(u32 to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
// Four 8×8 fragments whose rows the lanes 0–7, 8–15, 16–23 and 24–31 point at.
DEVICE void load_fragments(u32* r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
DEVICE void load_turned(u32* r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// d += 16 rows × 8 columns, over 16.
DEVICE void product(float* d, const u32* a, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Walk goes through the steps of a unit.
struct Walk {
  int span, start, end;
};
DEVICE Walk walk(const int* list, const Unit& u) {
  Walk w = {0, 0, 0};
  span_of(list, u, 0, w.start, w.end);
  return w;
}
DEVICE void advance(Walk& w, const int* list, const Unit& u) {
  w.start += KEYS;
  if (w.start >= w.end && ++w.span < u.spans) span_of(list, u, w.span, w.start, w.end);
}

// The scratch of keys and values.
struct Scratch {
  const bf16* at;
  int slots;
};
DEVICE void load_step(u32 to, const Scratch& from, int matrix, int start) {
  for (int i = threadIdx.x; i < 2 * KEYS * PIECES; i += 256) {
    int row = i / PIECES, piece = i % PIECES, value = row >= KEYS;
    int slot = min_i(start + row - value * KEYS, from.slots - 1);
    copy16(to + row * ROW_BYTES + piece * 16, from.at + ((u64)(matrix + value) * from.slots + slot) * HEAD_DIM + piece * 8);
  }
}
DEVICE void load_queries(u32 to, const bf16* queries, int stride, const Unit& u) {
  for (int i = threadIdx.x; i < TILE_ROWS * PIECES; i += 256) {
    int row = i / PIECES, piece = i % PIECES, token = min_i(row / GROUP, u.tokens() - 1), member = row % GROUP;
    copy16(to + row * ROW_BYTES + piece * 16, queries + (u64)(u.row + token) * stride + (u.head() * GROUP + member) * HEAD_DIM + piece * 8);
  }
}

DEVICE void mask_scores(float (&s)[KEYS / 2], const Walk& w, const Unit& u, const int* list, int row) {
  int column = w.start + 2 * (threadIdx.x & 3);
  if (w.span != u.window) {
    if (w.start + KEYS > w.end) mask(s, column, w.start, w.end - 1, w.start, w.end - 1);
    return;
  }
  if (w.start >= u.max_low && w.start + KEYS - 1 <= u.min_slot) return;
  const int *highs = list + list[LIST_HIGHS] + u.row, *lows = list + list[LIST_LOWS] + u.row;
  int t0 = min_i(row / GROUP, u.tokens() - 1), t1 = min_i((row + 8) / GROUP, u.tokens() - 1);
  mask(s, column, lows[t0], highs[t0], lows[t1], highs[t1]);
}

DEVICE void step_products(float (&s)[KEYS / 2], const u32 (&q)[HEAD_DIM / 4], u32 keys) {
  int lane = threadIdx.x & 31;
  u32 at = keys + ((lane & 7) + (lane >> 4) * 8) * ROW_BYTES + (lane >> 3 & 1) * 16;
#pragma unroll
  for (int i = 0; i < KEYS / 2; i++) s[i] = 0;
#pragma unroll
  for (int c = 0; c < HEAD_DIM / 16; c++) {
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
      u32 b[4];
      load_fragments(b, at + n * 16 * ROW_BYTES + c * 32);
      product(s + 8 * n, q + 4 * c, b[0], b[1]);
      product(s + 8 * n + 4, q + 4 * c, b[2], b[3]);
    }
  }
}
