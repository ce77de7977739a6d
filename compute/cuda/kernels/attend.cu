// attend: softmax(q·kᵀ/√d)·v of every row over the keys it sees, in bf16, sums in float; with POINTWISE
// scale·SiLU(α·q·kᵀ)·v, HSTU's, whose parts simply add.
//
// Keys and values of a batch lie in one scratch, [buffer][KV head][k|v][slot][dim]; a segment's tokens
// have consecutive slots. A tile of queries is TILE_TOKENS tokens × the GROUP query heads of one KV head,
// so that a key is loaded once for all of them. The tile goes through spans of slots, 128 keys at a
// step, with the online softmax. Spans that all rows see in full need no mask; in the window every row
// has its own first and last slot, which makes a causal triangle or blocks on a diagonal.
//
// The list of units (package attend) says what every block does; a tile's keys may be cut into parts
// where there are too few tiles to fill the GPU. Runs against the matrix units.
//
// GREBE_ARCH 90: blocks stay; one thread feeds the copy engine, two groups of 128 threads compute 64
// rows each by wgmma. Scores of the next step are computed while the probabilities of this one are
// multiplied with the values, and the two groups take turns at the matrix units (named barriers), so
// that one's softmax runs under the other's products.
// GREBE_ARCH 80: 8 warps compute 16 rows each by mma.m16n8k16, fed by cp.async.
//
// check: HEADS=12 KV_HEADS=2 HEAD_DIM=128
// check: HEADS=4 KV_HEADS=2 HEAD_DIM=64
// check: HEADS=3 KV_HEADS=3 HEAD_DIM=80
// check: HEADS=4 KV_HEADS=4 HEAD_DIM=64 POINTWISE=1
// check: HEADS=4 KV_HEADS=4 HEAD_DIM=128 POINTWISE=1
// check: HEADS=4 KV_HEADS=2 HEAD_DIM=64 EVERY_LANE=1
#include "grebe.cuh"
#include "attend.cuh"

#if GREBE_ARCH >= 90
// Shared memory, from a multiple of 1,024: the queries, two stages of keys, two of values. Each is
// COLUMN_BLOCKS blocks of 64 columns: 128 rows of 128 bytes, in which 16-byte pieces are swizzled as
// the copy engine does (piece ^ row % 8). Head dimensions that do not fill a block are padded with zeros.
#define COLUMN_BLOCKS ((HEAD_DIM + 63) / 64)
#define BLOCK_BYTES 16384
#define MATRIX_BYTES (COLUMN_BLOCKS * BLOCK_BYTES)
#define STAGES 2
#define QUERY_BYTES (COLUMN_BLOCKS * TILE_TOKENS * GROUP * 128)

// A consumer's lane 0 arrives for its warp, whose lanes have read what they need: all of them passed the named barrier of take_turn
// since. racecheck follows threads one by one and does not see that: with EVERY_LANE each lane arrives for itself.
#ifndef EVERY_LANE
#define EVERY_LANE 0
#endif
#define ARRIVALS (EVERY_LANE ? 256 : 8)

struct Control { // behind the matrices
  u64 query_full, query_empty;
  u64 key_full[STAGES], key_empty[STAGES], value_full[STAGES], value_empty[STAGES];
  int flag[2];
  U4 step[STAGES]; // first slot, end of the span, mask: 0 none, 1 by the span's end, 2 by rows
  Unit unit;       // of the queries
};

struct __align__(64) Map { u64 words[16]; };

DEVICE void barrier_init(u64* b, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count)); }
DEVICE void barrier_arrive_if(u64* b, int yes) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(shared_address(b)), "r"(yes) : "memory");
}
DEVICE void barrier_expect(u64* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
DEVICE void barrier_wait(u64* b, int parity) {
  u32 a = shared_address(b), done = 0;
  while (!done)
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(a), "r"(parity) : "memory");
}
DEVICE void copy_tile(const Map* map, u8* to, u64* b, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
               "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(b))
               : "memory");
}

// A matrix operand in shared memory with the swizzle over 128 bytes. Rows that are the sum's dimension
// (queries, keys): groups of 8 rows are 1,024 bytes apart. Values, whose columns are the result's: groups of
// 8 rows are 1,024 bytes apart, blocks of 64 columns BLOCK_BYTES.
// The upper half of its description is the same for all; the lower one counts 16 bytes. Both are the same in
// all threads, and the compiler knows it: it keeps them in uniform registers, else products would wait
// for each other's.
#define OPERAND_HIGH 0x40000040
DEVICE u32 operand(u32 address) { return (BLOCK_BYTES >> 4) << 16 | (address & 0x3ffff) >> 4; }
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Keeps reads of sums behind the wait for them.
template <int N> DEVICE void settle(float (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(r[i])::"memory");
}
// Keeps what value is computed from ahead of the next wait, which the compiler would otherwise move up
// to where its products began: a store, never done, that depends on it.
DEVICE void pin(float value, void* somewhere) {
  asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p st.shared.f32 [%1], %0;}" ::"f"(value), "r"(shared_address(somewhere)) : "memory");
}
#define R8(r, i) "+f"(r[i]), "+f"(r[i + 1]), "+f"(r[i + 2]), "+f"(r[i + 3]), "+f"(r[i + 4]), "+f"(r[i + 5]), "+f"(r[i + 6]), "+f"(r[i + 7])

// s = or += 64 queries × 128 keys, over 16 columns.
DEVICE void score(float (&s)[64], u32 q, u32 k, int add) {
  asm volatile(
      "{.reg .pred p; .reg .b64 q, k; setp.ne.b32 p, %66, 0; mov.b64 q, {%64, %67}; mov.b64 k, {%65, %67}; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
      "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"
      "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, q, k, p, 1, 1, 0, 0;}"
      : R8(s, 0), R8(s, 8), R8(s, 16), R8(s, 24), R8(s, 32), R8(s, 40), R8(s, 48), R8(s, 56)
      : "r"(q), "r"(k), "r"(add), "n"(OPERAND_HIGH));
}
// o += 64 rows of probabilities × values, over 16 keys.
DEVICE void weigh(float (&o)[SUMS], const u32* a, u32 v) {
#if HEAD_DIM == 64
  asm volatile(
      "{.reg .pred p; .reg .b64 v; setp.ne.b32 p, %37, 0; mov.b64 v, {%36, %38}; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
      "%27,%28,%29,%30,%31"
      "}, {%32,%33,%34,%35}, v, p, 1, 1, 1;}"
      : R8(o, 0), R8(o, 8), R8(o, 16), R8(o, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(v), "n"(1), "n"(OPERAND_HIGH));
#elif HEAD_DIM == 80
  asm volatile(
      "{.reg .pred p; .reg .b64 v; setp.ne.b32 p, %45, 0; mov.b64 v, {%44, %46}; wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
      "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39"
      "}, {%40,%41,%42,%43}, v, p, 1, 1, 1;}"
      : R8(o, 0), R8(o, 8), R8(o, 16), R8(o, 24), R8(o, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(v), "n"(1), "n"(OPERAND_HIGH));
#elif HEAD_DIM == 96
  asm volatile(
      "{.reg .pred p; .reg .b64 v; setp.ne.b32 p, %53, 0; mov.b64 v, {%52, %54}; wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
      "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
      "}, {%48,%49,%50,%51}, v, p, 1, 1, 1;}"
      : R8(o, 0), R8(o, 8), R8(o, 16), R8(o, 24), R8(o, 32), R8(o, 40)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(v), "n"(1), "n"(OPERAND_HIGH));
#elif HEAD_DIM == 128
  asm volatile(
      "{.reg .pred p; .reg .b64 v; setp.ne.b32 p, %69, 0; mov.b64 v, {%68, %70}; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
      "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"
      "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, {%64,%65,%66,%67}, v, p, 1, 1, 1;}"
      : R8(o, 0), R8(o, 8), R8(o, 16), R8(o, 24), R8(o, 32), R8(o, 40), R8(o, 48), R8(o, 56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(v), "n"(1), "n"(OPERAND_HIGH));
#endif
}

// Operands are 16-byte units into shared memory: further ones are found by adding.
DEVICE void all_scores(float (&s)[64], u32 queries, u32 keys) {
#pragma unroll
  for (int c = 0; c < HEAD_DIM / 16; c++) {
    int at = (c / 4 * BLOCK_BYTES + c % 4 * 32) >> 4;
    score(s, queries + at, keys + at, c > 0);
  }
}
DEVICE void all_values(float (&o)[SUMS], const u32 (&p)[32], u32 values) {
#pragma unroll
  for (int c = 0; c < STEP_KEYS / 16; c++) weigh(o, p + 4 * c, values + (c * 2048 >> 4));
}

// The producer: one thread that brings units, queries, keys and values.
DEVICE void produce(u8* shared, Control* c, const int* list, const Map* queries, const Map* keys, int buffer) {
  int unit = list[LIST_BLOCKS + 2 * blockIdx.x], units = list[LIST_BLOCKS + 2 * blockIdx.x + 1];
  u8 *q = shared, *k = shared + MATRIX_BYTES, *v = k + STAGES * MATRIX_BYTES;
  int stage = 0, parity = 1;
  for (int n = 0; n < units; n++) {
    Unit u = load_unit(list, unit + n);
    int matrix = (buffer * KV_HEADS + u.head()) * 2;
    bool first = true;
    for (int i = 0; i < u.spans; i++) {
      int start, end;
      span_of(list, u, i, start, end);
      for (; start < end; start += STEP_KEYS) {
        bool window = i == u.window;
        int masked = window ? (start < u.max_low || start + STEP_KEYS - 1 > u.min_slot ? 2 : 0) : (start + STEP_KEYS > end ? 1 : 0);
        barrier_wait(&c->key_empty[stage], parity);
        c->step[stage] = U4{(u32)start, (u32)end, (u32)masked, 0};
        barrier_expect(&c->key_full[stage], MATRIX_BYTES);
        for (int b = 0; b < COLUMN_BLOCKS; b++)
          copy_tile(keys, k + stage * MATRIX_BYTES + b * BLOCK_BYTES, &c->key_full[stage], 64 * b, start, matrix);
        if (first) {
          barrier_wait(&c->query_empty, (n & 1) ^ 1);
          c->unit = u;
          barrier_expect(&c->query_full, QUERY_BYTES);
          for (int b = 0; b < COLUMN_BLOCKS; b++) copy_tile(queries, q + b * BLOCK_BYTES, &c->query_full, 64 * b, u.head() * GROUP, u.row);
          first = false;
        }
        barrier_wait(&c->value_empty[stage], parity);
        barrier_expect(&c->value_full[stage], MATRIX_BYTES);
        for (int b = 0; b < COLUMN_BLOCKS; b++)
          copy_tile(keys, v + stage * MATRIX_BYTES + b * BLOCK_BYTES, &c->value_full[stage], 64 * b, start, matrix + 1);
        if (++stage == STAGES) { stage = 0; parity ^= 1; }
      }
    }
  }
}

// Rows a thread works on, and what of the window they see.
struct Rows { int low0, high0, low1, high1; };
DEVICE Rows load_rows(const int* list, const Unit& u, int row) {
  Rows r = {0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff};
  const int *highs = list + list[LIST_HIGHS] + u.row, *lows = list + list[LIST_LOWS] + u.row;
  int t0 = row / GROUP, t1 = (row + 8) / GROUP;
  if (t0 < u.tokens()) { r.low0 = lows[t0]; r.high0 = highs[t0]; }
  if (t1 < u.tokens()) { r.low1 = lows[t1]; r.high1 = highs[t1]; }
  return r;
}
DEVICE void mask_step(float (&s)[64], const U4& step, const Rows& r) {
  int column = (int)step.x + 2 * (threadIdx.x & 3);
  if (step.z == 1) mask(s, column, (int)step.x, (int)step.y - 1, (int)step.x, (int)step.y - 1);
  if (step.z == 2) mask(s, column, r.low0, r.high0, r.low1, r.high1);
}

// Halves take turns at starting products.
DEVICE void take_turn(int half) { named_sync(1 + half, 256); }
DEVICE void end_turn(int half) { named_arrive(2 - half, 256); }

// Tells the compiler that v is the same in all lanes.
DEVICE int uniform(int v) {
  int y;
  asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, 0xffffffff;" : "=r"(y) : "r"(v));
  return y;
}

// What a consumer works with.
struct Consumer {
  Control* control;
  u32 queries, keys, values; // operands
  float scale;
  int half, lane;
};
#define OPERAND_STRIDE (MATRIX_BYTES >> 4) // from stage to stage

// One step behind the first of a unit: scores of this step and, under their softmax, the values of the
// step before. There are no branches in it: the compiler would wait for products at each.
template <bool MASKED>
DEVICE void step(const Consumer& c, float (&o)[SUMS], u32 (&p)[32], Softmax& x, const U4& about, const Rows& rows, int stage, int before, int before_parity) {
  float s[64];
  take_turn(c.half);
  products_begin();
  all_scores(s, c.queries, c.keys + stage * OPERAND_STRIDE);
  products_commit();
  barrier_wait(&c.control->value_full[before], before_parity);
  all_values(o, p, c.values + before * OPERAND_STRIDE);
  products_commit();
  end_turn(c.half);
  products_wait<1>();
  settle(s);
  barrier_arrive_if(&c.control->key_empty[stage], EVERY_LANE || c.lane == 0);
  if (MASKED) mask_step(s, about, rows);
  soften(s, x, c.scale);
  settle(s);
  pin(x.l0 + x.l1, c.control);
  products_wait<0>();
  settle(o);
  barrier_arrive_if(&c.control->value_empty[before], EVERY_LANE || c.lane == 0);
  rescale(o, x);
#pragma unroll
  for (int j = 0; j < 32; j++) p[j] = pack_bf16(s[2 * j], s[2 * j + 1]);
}

// A consumer: 128 threads that compute 64 rows of every unit.
DEVICE void consume(u8* shared, Control* control, const int* list, float scale, const Output& to, int half) {
  int thread = threadIdx.x & 127, lane = threadIdx.x & 31;
  u32 base = shared_address(shared);
  const Consumer c = {control, operand(base + half * 8192), operand(base + MATRIX_BYTES), operand(base + (1 + STAGES) * MATRIX_BYTES), scale, half, lane};
  int units = uniform(list[LIST_BLOCKS + 2 * blockIdx.x + 1]);
  int stage = 0, parity = 0;
  if (half == 1) end_turn(1); // the first half begins
  for (int n = 0; n < units; n++) {
    barrier_wait(&control->query_full, n & 1);
    Unit u = control->unit;
    Rows rows = load_rows(list, u, half * 64 + (thread >> 5) * 16 + lane / 4);
    Softmax x = {MINUS_INF, MINUS_INF, 0, 0, 0, 0};
    float o[SUMS];
    u32 p[32];
#pragma unroll
    for (int i = 0; i < SUMS; i++) o[i] = 0;
    barrier_wait(&control->key_full[stage], parity);
    {
      float s[64];
      U4 about = control->step[stage];
      take_turn(half);
      products_begin();
      all_scores(s, c.queries, c.keys + stage * OPERAND_STRIDE);
      products_commit();
      end_turn(half);
      products_wait<0>();
      settle(s);
      barrier_arrive_if(&control->key_empty[stage], EVERY_LANE || lane == 0);
      if (uniform(about.z)) mask_step(s, about, rows);
      soften(s, x, scale);
#pragma unroll
      for (int i = 0; i < 32; i++) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    }
    int steps = uniform(u.steps);
    for (int i = 1; i < steps; i++) {
      int before = stage, before_parity = parity;
      if (++stage == STAGES) { stage = 0; parity ^= 1; }
      barrier_wait(&control->key_full[stage], parity);
      U4 about = control->step[stage];
      if (uniform(about.z)) step<true>(c, o, p, x, about, rows, stage, before, before_parity);
      else step<false>(c, o, p, x, about, rows, stage, before, before_parity);
    }
    barrier_arrive_if(&control->query_empty, EVERY_LANE || lane == 0);
    barrier_wait(&control->value_full[stage], parity);
    products_begin();
    all_values(o, p, c.values + stage * OPERAND_STRIDE);
    products_commit();
    products_wait<0>();
    settle(o);
    barrier_arrive_if(&control->value_empty[stage], EVERY_LANE || lane == 0);
    if (++stage == STAGES) { stage = 0; parity ^= 1; }
    finish(o, x, scale, u, to, Place{half, thread}, 3 + half, &control->flag[half]);
  }
}

KERNEL void __launch_bounds__(384, 1)
    attend(bf16* out, int stride, const int* list, F4* partials, int* counters, float scale, int buffer, float* logs,
           const __grid_constant__ Map queries, const __grid_constant__ Map keys) {
  extern __shared__ u8 memory[];
  u8* shared = memory + (1024 - (shared_address(memory) & 1023) & 1023);
  Control* c = (Control*)(shared + (1 + 2 * STAGES) * MATRIX_BYTES);
  if (threadIdx.x == 0) {
    barrier_init(&c->query_full, 1);
    barrier_init(&c->query_empty, ARRIVALS);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(&c->key_full[i], 1);
      barrier_init(&c->value_full[i], 1);
      barrier_init(&c->key_empty[i], ARRIVALS);
      barrier_init(&c->value_empty[i], ARRIVALS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("prefetch.tensormap [%0];" ::"l"(&queries) : "memory");
    asm volatile("prefetch.tensormap [%0];" ::"l"(&keys) : "memory");
  }
  __syncthreads();
  wait_for_previous();
  if (uniform(threadIdx.x / 128) == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) produce(shared, c, list, &queries, &keys, buffer);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume(shared, c, list, scale, Output{out, partials, counters, stride, scales_of(list), logs}, uniform(threadIdx.x / 128) - 1);
  }
}
#else
#include "attend_ampere.cuh"
#endif
