// What the attention kernels share: the work list (written by package attend, plan.go and encode.go)
// and what happens to a tile's result. See attend.cu for the idea.
#pragma once

#define GROUP (HEADS / KV_HEADS)
#define TILE_ROWS 128
#define TILE_TOKENS (TILE_ROWS / GROUP)
#define STEP_KEYS 128
#define MINUS_INF bits_f(0xff800000u)
#ifndef POINTWISE
#define POINTWISE 0 // 1: keys are weighed by SiLU of their scores, each by itself
#endif
#define UNSEEN (POINTWISE ? 0.0f : MINUS_INF) // score of keys that a row does not see

// Words of the list's header; offsets count words from the start of the list.
#define LIST_UNITS 5
#define LIST_SPANS 6
#define LIST_SLOTS 7
#define LIST_LOWS 8
#define LIST_SCALES 11 // of pointwise results
#define LIST_HIGHS 12
#define LIST_BLOCKS 16 // per block: first unit, number of units

// Unit is a tile of queries, TILE_TOKENS tokens × the GROUP heads of one KV head, and a part of the keys
// they see: spans of slots, the last of which may be the window, where every row has its own first and
// last key.
struct __align__(16) Unit {
  int row, size, steps, max_low;         // rows of the batch; tokens and KV head; steps of STEP_KEYS keys; largest first key in the window
  int min_slot, part, first_part, parts; // smallest last key; which of the tile's parts this is, or −1 when it is all
  int counter, span, spans, window;      // further spans are at LIST_SPANS + 2·span; window: number of the window or −1
  int start0, end0, start1, end1;        // the first two spans
  DEVICE int tokens() const { return size & 255; }
  DEVICE int head() const { return size >> 8; }
};

DEVICE float log2_fast(float x) { float y; asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE U4 load4(const int* p) {
  U4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
DEVICE Unit load_unit(const int* list, int i) {
  const int* p = list + list[LIST_UNITS] + 16 * i;
  U4 a = load4(p), b = load4(p + 4), c = load4(p + 8), d = load4(p + 12);
  return {(int)a.x, (int)a.y, (int)a.z, (int)a.w, (int)b.x, (int)b.y, (int)b.z, (int)b.w,
          (int)c.x, (int)c.y, (int)c.z, (int)c.w, (int)d.x, (int)d.y, (int)d.z, (int)d.w};
}
DEVICE const float* scales_of(const int* list) { return POINTWISE ? (const float*)(list + list[LIST_SCALES]) : 0; }
DEVICE void span_of(const int* list, const Unit& u, int i, int& start, int& end) {
  if (i == 0) { start = u.start0; end = u.end0; return; }
  if (i == 1) { start = u.start1; end = u.end1; return; }
  const int* p = list + list[LIST_SPANS] + 2 * (u.span + i - 2);
  start = p[0];
  end = p[1];
}

DEVICE u32 shuffle_xor(u32 v, int mask) {
  u32 y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(v), "r"(mask));
  return y;
}
DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE F4 load_l2(const F4* p) {
  F4 v;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}

// A tile's result in registers: of 64 rows, 16 per warp, a thread holds the columns 8j + 2·(lane%4) + {0, 1}
// of row lane/4 in o[4j], o[4j+1] and of row lane/4 + 8 in o[4j+2], o[4j+3]: the layout of the matrix units' sums.
#define SUMS (HEAD_DIM / 2)

// Softmax carries a thread's two rows through the keys: their largest score, their own part of the
// sum and, after a step, what former sums are to be multiplied by. m is in units of scores.
struct Softmax {
  float m0, m1, l0, l1, a0, a1;
};

template <int N>
DEVICE void mask(float (&s)[N], int column, int low0, int high0, int low1, int high1) {
  // One comparison per bound pair: below low wraps around to large numbers.
  u32 n0 = (u32)(high0 - low0), n1 = (u32)(high1 - low1);
#pragma unroll
  for (int j = 0; j < N / 4; j++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      int key = column + 8 * j + e;
      if ((u32)(key - low0) > n0) s[4 * j + e] = UNSEEN;
      if ((u32)(key - low1) > n1) s[4 * j + 2 + e] = UNSEEN;
    }
  }
}

#if POINTWISE
// x·sigmoid(x) for x = 2h, with one use of the special functions.
DEVICE float silu_half(float h) {
  float t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(h));
  return h * t + h;
}
// Turns scores into weights. Of x it sets only what the pipeline waits for.
template <int N>
DEVICE void soften(float (&s)[N], Softmax& x, float scale) {
  scale *= 0.5f;
#pragma unroll
  for (int j = 0; j < N; j++) s[j] = silu_half(s[j] * scale);
  x.l0 = abs_f(s[0]) + abs_f(s[N / 2]);
  x.l1 = abs_f(s[N / 4]) + abs_f(s[N - 1]);
}
DEVICE void rescale(float (&o)[SUMS], const Softmax& x) {}
#else
// Turns scores into probabilities relative to the largest score so far.
template <int N>
DEVICE void soften(float (&s)[N], Softmax& x, float scale) {
  float m0 = x.m0, m1 = x.m1, n0 = s[0], n1 = s[2];
#pragma unroll
  for (int j = 0; j < N / 4; j++) {
    m0 = max_f(m0, s[4 * j]);
    n0 = max_f(n0, s[4 * j + 1]);
    m1 = max_f(m1, s[4 * j + 2]);
    n1 = max_f(n1, s[4 * j + 3]);
  }
  m0 = max_f(m0, n0);
  m1 = max_f(m1, n1);
  m0 = max_f(m0, shuffle_xor(m0, 1));
  m1 = max_f(m1, shuffle_xor(m1, 1));
  m0 = max_f(m0, shuffle_xor(m0, 2));
  m1 = max_f(m1, shuffle_xor(m1, 2));
  // A row that has seen nothing yet keeps zeros: −∞ − 0 instead of −∞ − −∞.
  float b0 = m0 == MINUS_INF ? 0.0f : m0 * scale, b1 = m1 == MINUS_INF ? 0.0f : m1 * scale;
  x.a0 = exp2_fast(x.m0 * scale - b0);
  x.a1 = exp2_fast(x.m1 * scale - b1);
  x.m0 = m0;
  x.m1 = m1;
  float t0 = 0, t1 = 0, u0 = 0, u1 = 0;
#pragma unroll
  for (int j = 0; j < N / 4; j++) {
    s[4 * j] = exp2_fast(s[4 * j] * scale - b0);
    s[4 * j + 1] = exp2_fast(s[4 * j + 1] * scale - b0);
    s[4 * j + 2] = exp2_fast(s[4 * j + 2] * scale - b1);
    s[4 * j + 3] = exp2_fast(s[4 * j + 3] * scale - b1);
    t0 += s[4 * j];
    u0 += s[4 * j + 1];
    t1 += s[4 * j + 2];
    u1 += s[4 * j + 3];
  }
  x.l0 = x.l0 * x.a0 + (t0 + u0);
  x.l1 = x.l1 * x.a1 + (t1 + u1);
}

DEVICE void rescale(float (&o)[SUMS], const Softmax& x) {
#pragma unroll
  for (int j = 0; j < SUMS / 4; j++) {
    o[4 * j] *= x.a0;
    o[4 * j + 1] *= x.a0;
    o[4 * j + 2] *= x.a1;
    o[4 * j + 3] *= x.a1;
  }
}
#endif

// Where a result goes.
struct Output {
  bf16* out;     // [row][head][HEAD_DIM]
  F4* partials;  // per part: two halves of PART_F4 values
  int* counters; // per split tile and half: parts that are done; 0 between launches
  int stride;    // elements from row to row
  const float* scales; // per row of the batch what a pointwise result is multiplied by
  float* logs;         // [row][HEADS]: log2 of the sum of a softmax, for received.cu
};
#define PART_F4 ((SUMS / 4 + 1) * 128) // of 64 rows

struct Place { // of the 64 rows that a group of 128 threads holds
  int half, thread; // 0 or 1 of the tile; 0 to 127
};

// Puts a column of 4×4 words of four neighbouring threads upside down: word i of thread t becomes word t of thread i.
DEVICE void transpose4(u32 (&x)[4]) {
  int t = threadIdx.x & 3;
#pragma unroll
  for (int b = 1; b <= 2; b <<= 1) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i & b) continue;
      u32 got = shuffle_xor((t & b) ? x[i] : x[i | b], b);
      if (t & b) x[i] = got;
      else x[i | b] = got;
    }
  }
}

// Divides by the sums, or multiplies by the row's scale, and stores, 16 bytes at a time.
DEVICE void store_rows(const float (&o)[SUMS], float l0, float l1, const Output& to, const Unit& u, const Place& at) {
  int lane = at.thread & 31, first = at.half * 64 + (at.thread >> 5) * 16 + lane / 4;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int row = first + 8 * r, token = row / GROUP, member = row % GROUP;
    float inverse = POINTWISE ? to.scales[u.row + min_i(token, u.tokens() - 1)] : 1.0f / (r ? l1 : l0);
    bf16* dst = to.out + (u64)(u.row + token) * to.stride + (u.head() * GROUP + member) * HEAD_DIM;
    bool valid = token < u.tokens();
#pragma unroll
    for (int j = 0; j < SUMS / 4; j += 4) {
      u32 x[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int k = 4 * (j + i) + 2 * r;
        x[i] = j + i < SUMS / 4 ? pack_bf16(o[k % SUMS] * inverse, o[(k + 1) % SUMS] * inverse) : 0;
      }
      transpose4(x);
      int block = j + (lane & 3);
      if (valid && block < SUMS / 4) *(U4*)(dst + 8 * block) = U4{x[0], x[1], x[2], x[3]};
    }
  }
}

// Stores the logarithms of two rows' sums: probabilities are 2^(score·scale − log).
DEVICE void store_logs(float log0, float log1, const Output& to, const Unit& u, const Place& at) {
#if !POINTWISE
  int lane = at.thread & 31, first = at.half * 64 + (at.thread >> 5) * 16 + lane / 4;
  if (lane & 3) return;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int row = first + 8 * r, token = row / GROUP;
    if (token < u.tokens()) to.logs[(u64)(u.row + token) * HEADS + u.head() * GROUP + row % GROUP] = r ? log1 : log0;
  }
#endif
}

// Adds the sums v of another part, in m's own scale, to o.
DEVICE void add_part(float (&o)[SUMS], F4& x, const F4 (&v)[SUMS / 4], const F4& s) {
#if POINTWISE
#pragma unroll
  for (int j = 0; j < SUMS / 4; j++) {
    o[4 * j] += v[j].x;
    o[4 * j + 1] += v[j].y;
    o[4 * j + 2] += v[j].z;
    o[4 * j + 3] += v[j].w;
  }
  return;
#endif
  float m0 = max_f(x.x, s.x), m1 = max_f(x.z, s.z);
  float b0 = m0 == MINUS_INF ? 0.0f : m0, b1 = m1 == MINUS_INF ? 0.0f : m1;
  float a0 = exp2_fast(x.x - b0), a1 = exp2_fast(x.z - b1), c0 = exp2_fast(s.x - b0), c1 = exp2_fast(s.z - b1);
  x = F4{m0, x.y * a0 + s.y * c0, m1, x.w * a1 + s.w * c1};
#pragma unroll
  for (int j = 0; j < SUMS / 4; j++) {
    o[4 * j] = o[4 * j] * a0 + v[j].x * c0;
    o[4 * j + 1] = o[4 * j + 1] * a0 + v[j].y * c0;
    o[4 * j + 2] = o[4 * j + 2] * a1 + v[j].z * c1;
    o[4 * j + 3] = o[4 * j + 3] * a1 + v[j].w * c1;
  }
}

// Takes a tile's sums. A part of a tile goes to the partials; whoever brings the last part adds all
// of them up in their order, so that the result does not depend on who that was.
DEVICE void finish(float (&o)[SUMS], Softmax& x, float scale, const Unit& u, const Output& to, const Place& at, int barrier, volatile int* flag) {
  x.l0 += shuffle_xor(x.l0, 1);
  x.l1 += shuffle_xor(x.l1, 1);
  x.l0 += shuffle_xor(x.l0, 2);
  x.l1 += shuffle_xor(x.l1, 2);
  if (u.part < 0) {
    store_logs(x.m0 * scale + log2_fast(x.l0), x.m1 * scale + log2_fast(x.l1), to, u, at);
    store_rows(o, x.l0, x.l1, to, u, at);
    return;
  }
  F4* mine = to.partials + (u64)(u.part * 2 + at.half) * PART_F4 + at.thread;
#pragma unroll
  for (int j = 0; j < SUMS / 4; j++) mine[j * 128] = F4{o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]};
  mine[SUMS / 4 * 128] = F4{x.m0 * scale, x.l0, x.m1 * scale, x.l1};
  named_sync(barrier, 128);
  if (at.thread == 0) {
    int *c = to.counters + u.counter * 2 + at.half, before;
    asm volatile("fence.acq_rel.gpu;" ::: "memory"); // for all that the barrier let through
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(c) : "memory");
    *flag = before == u.parts - 1;
    if (before == u.parts - 1) *(volatile int*)c = 0;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }
  named_sync(barrier, 128);
  if (!*flag) return;
  const F4* from = to.partials + (u64)(u.first_part * 2 + at.half) * PART_F4 + at.thread;
  F4 sums = {MINUS_INF, 0, MINUS_INF, 0};
#pragma unroll
  for (int j = 0; j < SUMS; j++) o[j] = 0;
  for (int p = 0; p < u.parts; p++, from += 2 * PART_F4) {
    F4 s = load_l2(from + SUMS / 4 * 128), v[SUMS / 4];
#pragma unroll
    for (int j = 0; j < SUMS / 4; j++) v[j] = load_l2(from + j * 128);
    add_part(o, sums, v, s);
  }
  store_logs(sums.x + log2_fast(sums.y), sums.z + log2_fast(sums.w), to, u, at);
  store_rows(o, sums.y, sums.w, to, u, at);
}
