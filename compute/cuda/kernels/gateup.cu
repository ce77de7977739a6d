// gateup: products x·Wᵀ of bf16 or e4m3 on Hopper's tensor cores, summed in float, whose end is fused:
//
//	FORM 0  out = silu(gate) · up, bf16; row 2i of W is row i of the gate's matrix, row 2i+1 of up's
//	FORM 1  out = x·Wᵀ + bias, bf16
//	FORM 2  out += x·Wᵀ + bias, float
//
// IN is the format of x and W: 1 for bf16; 3 for e4m3, where every row of x and of W has a scale. A line of a buffer
// is 128 bytes, 64 columns of bf16 or 128 of e4m3, and a wgmma takes 32 bytes of it: nothing else differs.
//
// A block is a producer and two consumers of 4 warps each. It takes one tile of BM rows by BN rows of W
// after the other, so that the grid is as large as the GPU. The producer's one thread lets the copy
// engine fill STAGES buffers of a line of each row of x and W; full[s] and empty[s] pass them to and fro. Two
// blocks may form a cluster: with CM = 2 they have neighbouring rows and share W's part, with CN = 2
// they have neighbouring columns and share x's; each copies half of what is shared to both.
//
// Consumer w takes rows w·BM/2 … of the tile, if there are any. With TURNS the consumers take whole tiles in turns instead:
// one's products run under the other's end.
//
// Shared memory of a buffer: rows of 128 bytes, x's then W's, in groups of 8 rows (1,024 bytes) within
// which the copy engine swaps 16-byte pieces: piece p of row r lies at p ^ (r % 8). wgmma's descriptor of
// that layout: address/16, 1,024/16 as the stride between groups, mode 1 in the top bits. 16 columns
// further on are 32 bytes further on in the address.
//
// Result of a wgmma in registers: thread t of a consumer has rows t/32·16 + t%32/4 (+ 8) and of each 8
// columns j the two columns 8j + 2·(t%4): d[4j], d[4j+1], and of the lower row d[4j+2], d[4j+3]. So in
// FORM 0 a thread has gate and up of the same column, 4j + t%4. Four threads swap their columns of several
// j, so that each stores pieces of 16 bytes.
//
// Limit: the tensor cores; for few rows, reading W once.
// check: IN=1 BM=128 BN=256 STAGES=4 CM=2 CN=1 GROUP=16 FORM=0 BIAS=0 TURNS=0
// check: IN=1 BM=128 BN=192 STAGES=5 CM=2 CN=1 GROUP=16 FORM=0 BIAS=0 TURNS=1
// check: IN=1 BM=256 BN=136 STAGES=4 CM=1 CN=2 GROUP=16 FORM=0 BIAS=1 TURNS=0
// check: IN=1 BM=256 BN=192 STAGES=4 CM=1 CN=1 GROUP=16 FORM=1 BIAS=0 TURNS=0
// check: IN=1 BM=128 BN=96 STAGES=6 CM=1 CN=2 GROUP=16 FORM=2 BIAS=1 TURNS=0
// check: IN=3 BM=128 BN=256 STAGES=4 CM=2 CN=1 GROUP=16 FORM=0 BIAS=0 TURNS=0
// check: IN=3 BM=128 BN=192 STAGES=5 CM=1 CN=2 GROUP=16 FORM=0 BIAS=0 TURNS=1
// check: IN=3 BM=256 BN=136 STAGES=4 CM=1 CN=2 GROUP=16 FORM=0 BIAS=1 TURNS=0
#include "grebe.cuh"

#if GREBE_ARCH >= 90
#include "gateup.cuh"

#ifdef __clang__ // which does not know it before version 20
#undef __grid_constant__
#define __grid_constant__
#endif

struct __align__(64) TensorMap { u64 words[16]; };

constexpr int depth = IN == 3 ? 128 : 64; // columns of a buffer
constexpr int blocks = TURNS ? BM / 64 : BM / 128; // of 64 rows, of one consumer
constexpr int cluster = CM * CN;
constexpr u32 xBytes = BM * 128, wBytes = BN * 128, stageBytes = xBytes + wBytes;
static_assert(BM == 128 || BM == 256, "rows of a tile");
static_assert(BN % 8 == 0 && BN <= 256 && (CM == 1 || BN % 16 == 0), "columns of a tile");
static_assert(cluster <= 2, "blocks of a cluster");
static_assert(!TURNS || BM == 128, "rows of a consumer");

// ---- barriers and copies

DEVICE void barrier_init(u32 b, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(count)); }

DEVICE void barrier_expect(u32 b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}

DEVICE void barrier_wait(u32 b, u32 parity) {
  u32 done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(b), "r"(parity) : "memory");
  } while (!done);
}

// Arrives at the barrier b of block rank of the cluster. It needs no fence of its own: what was read was
// waited for.
DEVICE void barrier_arrive(u32 b, u32 rank) {
  if (cluster == 1) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
    return;
  }
  asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [a]; }"
               ::"r"(b), "r"(rank) : "memory");
}

DEVICE void copy_tile(u32 to, const TensorMap* map, int col, int row, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(col), "r"(row), "r"(barrier) : "memory");
}

// Copies to both blocks of the cluster, to the same place.
DEVICE void copy_shared_tile(u32 to, const TensorMap* map, int col, int row, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2, %3}], [%4], %5;"
               ::"r"(to), "l"(map), "r"(col), "r"(row), "r"(barrier), "h"((u16)3) : "memory");
}

DEVICE void cluster_sync() {
  if (cluster == 1) {
    __syncthreads();
    return;
  }
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

// ---- the order of tiles

struct Tiles {
  int down, across, rank, first, step; // clusters of tiles; this block's place in its cluster, its tiles
  int row, col;                        // first row and column of this block's tile

  DEVICE int count() const { return down * across; }
  // Rows run first, in groups that the cache holds, so that W is read once per group. Which of them a cluster begins with
  // changes from round to round: the last may be short, and everybody is to get some of those.
  DEVICE void take(int t) {
    int whole = GROUP * across, g = t / whole, r = t - g * whole;
    int high = min_i(GROUP, down - g * GROUP), n = r / high, m = g * GROUP + (r - n * high + (n * high + high / 2) / step) % high;
    row = (m * CM + (CM > 1 ? rank : 0)) * BM;
    col = (n * CN + (CN > 1 ? rank : 0)) * BN;
  }
  // Whether the cluster's tile t, which was taken, has no rows. The first is computed all the same: its part
  // of W was asked for before the number of rows was known.
  DEVICE bool empty(int t, int rows) const { return t != first && row - (CM > 1 ? rank * BM : 0) >= rows; }
};

// ---- the ends of a tile

struct End {
  void* out;
  const float* bias;
  int rows, cols, stride;
  const float *row_scale, *col_scale;
};

// Scales of two rows of x, the second 8 below the first. Rows beyond the last, which nobody stores, have the last's.
struct RowScales {
  float upper = 1, lower = 1;
  DEVICE void load(const End& e, int row) {
#if IN == 3
    int last = max_i(e.rows - 1, 0);
    upper = e.row_scale[min_i(row, last)], lower = e.row_scale[min_i(row + 8, last)];
#endif
  }
};

// Brings the scales of a tile's columns near while the tile is multiplied.
DEVICE void fetch_scales(const End& e, int col) {
#if IN == 3
  int line = threadIdx.x & 127; // of 32 scales
  if (line <= BN / 32) asm volatile("prefetch.global.L1 [%0];" ::"l"(e.col_scale + min_i(col + 32 * line, e.cols - 1)));
#endif
}

// Values of two columns of W, of which the first is even, and two rows: with their scales, and the bias.
DEVICE F4 with_bias(const End& e, const RowScales& rows, const float* d, int col) {
  F4 v = {d[0], d[1], d[2], d[3]};
#if IN == 3
  F2 s = *(const F2*)(e.col_scale + min_i(col, e.cols - 2));
  v.x = v.x * s.x * rows.upper, v.y = v.y * s.y * rows.upper;
  v.z = v.z * s.x * rows.lower, v.w = v.w * s.y * rows.lower;
#endif
#if BIAS
  F2 b = *(const F2*)(e.bias + min_i(col, e.cols - 2));
  v.x += b.x, v.y += b.y, v.z += b.x, v.w += b.y;
#endif
  return v;
}

DEVICE u32 swap(u32 v, int mask) {
  u32 y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(v), "r"(mask));
  return y;
}

// Lane c of four neighbours gets word c of each: w[k·step] becomes lane k's w[c·step].
template <int step> DEVICE void transpose(u32* w, int c) {
  bool odd = c & 1, upper = c & 2;
  u32 a = swap(odd ? w[0] : w[step], 1), b = swap(odd ? w[2 * step] : w[3 * step], 1);
  w[0] = odd ? a : w[0], w[step] = odd ? w[step] : a;
  w[2 * step] = odd ? b : w[2 * step], w[3 * step] = odd ? w[3 * step] : b;
  a = swap(upper ? w[0] : w[2 * step], 2), b = swap(upper ? w[step] : w[3 * step], 2);
  w[0] = upper ? a : w[0], w[2 * step] = upper ? w[2 * step] : a;
  w[step] = upper ? b : w[step], w[3 * step] = upper ? w[3 * step] : b;
}

DEVICE u32 low_halves(u32 a, u32 b) { u32 v; asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(v) : "r"(a), "r"(b)); return v; }
DEVICE u32 high_halves(u32 a, u32 b) { u32 v; asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(v) : "r"(a), "r"(b)); return v; }

// Stores to p + bytes if it is wanted, without a branch. Whole sectors of 32 bytes matter: with less the cache
// takes twice as long.
template <int bytes> DEVICE void store4(void* p, bool wanted, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.v4.b32 [%1 + %2], {%3, %4, %5, %6}; }"
               ::"r"((u32)wanted), "l"(p), "n"(bytes), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
template <int bytes> DEVICE void store2(void* p, bool wanted, u32 a, u32 b) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.v2.b32 [%1 + %2], {%3, %4}; }"
               ::"r"((u32)wanted), "l"(p), "n"(bytes), "r"(a), "r"(b) : "memory");
}
template <int bytes> DEVICE void store1(void* p, bool wanted, u32 a) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.b16 [%1 + %2], %3; }"
               ::"r"((u32)wanted), "l"(p), "n"(bytes), "h"((u16)a) : "memory");
}
template <int bytes> DEVICE void add2(void* p, bool wanted, float a, float b) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p red.relaxed.gpu.global.add.v2.f32 [%1 + %2], {%3, %4}; }"
               ::"r"((u32)wanted), "l"(p), "n"(bytes), "f"(a), "f"(b) : "memory");
}

// for_each<0, n, step>(f) calls f with the constants 0, step, … below n.
template <int v> struct Constant { static constexpr int value = v; };
template <int i, int n, int step, typename F> DEVICE void for_each(F f) {
  if constexpr (i < n) {
    f(Constant<i>());
    for_each<i + step, n, step>(f);
  }
}

#if FORM == 0
// silu(gate)·up of two rows. The quotients of both come from one reciprocal: that unit is the bottleneck.
// Below -43 silu is 0 to the last bit of bf16 next to any other value; the bound keeps p·q finite.
DEVICE u32 gate_up(const End& e, const RowScales& rows, const float* d, int col) {
  const float scale = -1.4426950408889634f, most = 62;
  F4 v = with_bias(e, rows, d, col);
  float p = v.x * scale, q = v.z * scale;
  p = 1 + exp2_fast(p < most ? p : most), q = 1 + exp2_fast(q < most ? q : most);
  float r = rcp_fast(p * q);
  return pack_bf16(v.x * v.y * (r * q), v.z * v.w * (r * p));
}

// e.cols counts W's rows; out has half as many columns.
DEVICE void finish(const End& e, const RowScales& scales, const float (&d)[BN / 2], int row, int col, int c) {
  // Tiles of an odd number of groups begin at multiples of 8 bytes only.
  constexpr int n = BN / 8, whole = n % 2 ? 0 : n / 8 * 8, rest = whole + (n - whole) / 4 * 4;
  u32 w[n]; // of column 4j + c: the upper row in the low half, the lower in the high half
#pragma unroll
  for (int j = 0; j < n; j++) w[j] = gate_up(e, scales, d + 4 * j, col + 8 * j + 2 * c);
  u8* upper = (u8*)((bf16*)e.out + (u64)row * e.stride + col / 2);
  u8* lower = upper + (u64)16 * e.stride;
  bool has = row < e.rows, hasLower = row + 8 < e.rows;
  for_each<0, whole, 8>([&](auto at) { // lane c gets j = 2c and 2c+1: columns 8c … 8c+7 of 32
    constexpr int j = decltype(at)::value;
    u32* v = w + j;
    transpose<2>(v, c);
    transpose<2>(v + 1, c);
    bool inside = col + 8 * j + 16 * c < e.cols;
    U4 a = {low_halves(v[0], v[2]), low_halves(v[4], v[6]), low_halves(v[1], v[3]), low_halves(v[5], v[7])};
    U4 b = {high_halves(v[0], v[2]), high_halves(v[4], v[6]), high_halves(v[1], v[3]), high_halves(v[5], v[7])};
    store4<8 * j>(upper + 16 * c, has & inside, a.x, a.y, a.z, a.w);
    store4<8 * j>(lower + 16 * c, hasLower & inside, b.x, b.y, b.z, b.w);
  });
  for_each<whole, rest, 4>([&](auto at) {
    constexpr int j = decltype(at)::value;
    u32* v = w + j;
    transpose<1>(v, c);
    bool inside = col + 8 * (j + c) < e.cols;
    store2<8 * j>(upper + 8 * c, has & inside, low_halves(v[0], v[1]), low_halves(v[2], v[3]));
    store2<8 * j>(lower + 8 * c, hasLower & inside, high_halves(v[0], v[1]), high_halves(v[2], v[3]));
  });
  for_each<rest, n, 1>([&](auto at) {
    constexpr int j = decltype(at)::value;
    bool inside = col + 8 * j < e.cols;
    store1<8 * j>(upper + 2 * c, has & inside, w[j]);
    store1<8 * j>(lower + 2 * c, hasLower & inside, w[j] >> 16);
  });
}
#elif FORM == 1
DEVICE void finish(const End& e, const RowScales& scales, const float (&d)[BN / 2], int row, int col, int c) {
  constexpr int n = BN / 8, padded = (n + 3) / 4 * 4;
  u32 w[padded] = {}, v[padded] = {}; // columns 8j + 2c of the upper and the lower row
#pragma unroll
  for (int j = 0; j < n; j++) {
    F4 f = with_bias(e, scales, d + 4 * j, col + 8 * j + 2 * c);
    w[j] = pack_bf16(f.x, f.y);
    v[j] = pack_bf16(f.z, f.w);
  }
  u8* upper = (u8*)((bf16*)e.out + (u64)row * e.stride + col) + 16 * c;
  u8* lower = upper + (u64)16 * e.stride;
  bool has = row < e.rows, hasLower = row + 8 < e.rows;
  for_each<0, n, 4>([&](auto at) { // lane c gets columns 8c … 8c+7 of 32
    constexpr int j = decltype(at)::value;
    transpose<1>(w + j, c);
    transpose<1>(v + j, c);
    bool inside = j + c < n && col + 8 * (j + c) < e.cols;
    store4<16 * j>(upper, has & inside, w[j], w[j + 1], w[j + 2], w[j + 3]);
    store4<16 * j>(lower, hasLower & inside, v[j], v[j + 1], v[j + 2], v[j + 3]);
  });
}
#else
// Each value is added to by one thread, once: the result does not depend on an order.
DEVICE void finish(const End& e, const RowScales& scales, const float (&d)[BN / 2], int row, int col, int c) {
  float* upper = (float*)e.out + (u64)row * e.stride + col + 2 * c;
  float* lower = upper + (u64)8 * e.stride;
  bool has = row < e.rows, hasLower = row + 8 < e.rows;
  for_each<0, BN / 8, 1>([&](auto at) {
    constexpr int j = decltype(at)::value;
    F4 f = with_bias(e, scales, d + 4 * j, col + 8 * j + 2 * c);
    bool inside = col + 8 * j < e.cols;
    add2<32 * j>(upper, has & inside, f.x, f.y);
    add2<32 * j>(lower, hasLower & inside, f.z, f.w);
  });
}
#endif

// ---- the two roles

struct Buffers {
  u32 stages, full, empty; // addresses in shared memory
  int index;               // buffers so far

  DEVICE u32 x() const { return stages + index % STAGES * stageBytes; }
  DEVICE u32 w() const { return x() + xBytes; }
  DEVICE u32 filled() const { return full + index % STAGES * 8; }
  DEVICE u32 emptied(int i) const { return empty + i % STAGES * 8; }
  DEVICE u32 parity() const { return index / STAGES & 1; }
};

DEVICE void copy_x(const Buffers& b, const Tiles& t, const TensorMap* x, int c) {
  if (CN == 2)
    copy_shared_tile(b.x() + t.rank * (xBytes / 2), x, c, t.row + t.rank * (BM / 2), b.filled());
  else
    copy_tile(b.x(), x, c, t.row, b.filled());
}

DEVICE void copy_w(const Buffers& b, const Tiles& t, const TensorMap* w, int c) {
  if (CM == 2)
    copy_shared_tile(b.w() + t.rank * (wBytes / 2), w, c, t.col + t.rank * (BN / 2), b.filled());
  else
    copy_tile(b.w(), w, c, t.col, b.filled());
}

// W's part of the first buffers does not wait for the kernel before this one.
DEVICE void produce(Buffers b, Tiles tiles, const TensorMap* x, const TensorMap* w, int k, const int* rows) {
  if (tiles.first >= tiles.count()) return;
  tiles.take(tiles.first);
  int early = min_i(STAGES * depth, k);
  for (int c = 0; c < early; c += depth, b.index++) {
    barrier_expect(b.filled(), stageBytes);
    copy_w(b, tiles, w, c);
  }
  wait_for_previous();
  int n = *rows;
  b.index = 0;
  for (int c = 0; c < early; c += depth, b.index++) copy_x(b, tiles, x, c);
  for (int t = tiles.first; t < tiles.count(); t += tiles.step) {
    tiles.take(t);
    if (tiles.empty(t, n)) continue;
    for (int c = t == tiles.first ? early : 0; c < k; c += depth, b.index++) {
      barrier_wait(b.emptied(b.index), b.parity() ^ 1);
      barrier_expect(b.filled(), stageBytes);
      copy_x(b, tiles, x, c);
      copy_w(b, tiles, w, c);
    }
  }
}

DEVICE u64 descriptor(u32 address) { return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62; }

// d += x·w for 64 rows of x and 32 bytes of each.
DEVICE void multiply(float (&d)[BN / 2], u64 x, u64 w) { asm volatile(MMA(BN) : ACC(BN)(d) : "l"(x), "l"(w)); }

template <int pending> DEVICE void multiplied() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }

// Every warp gives the buffer back, to both blocks of a cluster: either may copy into either.
DEVICE void release(const Buffers& b, int index) {
  int lane = threadIdx.x & 31;
  if (lane < cluster) barrier_arrive(b.emptied(index), lane);
}

// A consumer begins its tile when the other has seen all buffers of its own full: else it could take a buffer's
// last filling for the one that it waits for, since barriers know only whether a filling is odd.
DEVICE void await_turn(int who) { asm volatile("bar.sync %0, 256;" ::"r"(1 + who) : "memory"); }
DEVICE void end_turn(int who) { asm volatile("bar.arrive %0, 256;" ::"r"(2 - who) : "memory"); }

// Tells the compiler that v is the same in all lanes.
DEVICE int same_in_all(int v) {
  int y;
  asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, 0xffffffff;" : "=r"(y) : "r"(v));
  return y;
}

DEVICE void consume(Buffers b, Tiles tiles, const End& e, int k, int who) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
  int turn = 0, share = TURNS ? 0 : who; // which part of the tile's rows is the consumer's
  for (int t = tiles.first; t < tiles.count(); t += tiles.step) {
    tiles.take(t);
    if (tiles.empty(t, e.rows)) continue;
    if (TURNS && turn++ % 2 != who) {
      b.index += k / depth;
      continue;
    }
    if (TURNS && turn > 1) await_turn(who);
    int row = tiles.row + share * (BM / 2);
    if (!TURNS && same_in_all(row >= e.rows)) { // the other consumer has the tile to itself, and takes half the time
      for (int c = 0; c < k; c += depth, b.index++) {
        barrier_wait(b.filled(), b.parity());
        release(b, b.index);
      }
      continue;
    }
    RowScales scales[blocks];
#pragma unroll
    for (int i = 0; i < blocks; i++) scales[i].load(e, row + i * 64 + warp * 16 + lane / 4);
    fetch_scales(e, tiles.col);
    float d[blocks][BN / 2]; // cleared, since a first step that does not add makes the compiler wait for each wgmma
#pragma unroll
    for (int i = 0; i < blocks * BN / 2; i++) d[i / (BN / 2)][i % (BN / 2)] = 0;
    for (int c = 0; c < k; c += depth, b.index++) {
      barrier_wait(b.filled(), b.parity());
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      u64 x = descriptor(b.x() + share * (xBytes / 2)), w = descriptor(b.w());
#pragma unroll
      for (int s = 0; s < 4; s++) { // of 32 bytes
#pragma unroll
        for (int i = 0; i < blocks; i++) multiply(d[i], x + s * 2 + i * (64 * 128 >> 4), w + s * 2);
      }
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      if (c > 0) {
        multiplied<1>();
        release(b, b.index - 1);
      }
    }
    if (TURNS) end_turn(who);
    multiplied<0>();
    release(b, b.index - 1);
#pragma unroll
    for (int i = 0; i < blocks; i++)
      finish(e, scales[i], d[i], row + i * 64 + warp * 16 + lane / 4, tiles.col, lane & 3);
  }
}

// rows holds the number of rows of x, at most most, which cuts the work; w has cols rows of k columns, k a multiple of
// depth. The grid is a multiple of the cluster. x and w describe boxes of depth columns by BM/CN
// and BN/CM rows, swizzled by 128 bytes. stride is out's, in values. Scales are those of e4m3.
KERNEL void __launch_bounds__(384, 1)
    product(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, void* out,
            const float* bias, const int* rows, int most, int cols, int k, int stride, const float* row_scale,
            const float* col_scale) {
  extern __shared__ u8 memory[];
  Buffers b;
  b.stages = (shared_address(memory) + 1023) & ~1023u;
  b.full = b.stages + STAGES * stageBytes;
  b.empty = b.full + STAGES * 8;
  b.index = 0;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(b.full + s * 8, 1);
      barrier_init(b.empty + s * 8, (TURNS ? 4 : 8) * cluster); // warps that read it
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("prefetch.tensormap [%0]; prefetch.tensormap [%1];" ::"l"(&x), "l"(&w) : "memory");
  }
  cluster_sync();
  allow_next();

  Tiles tiles;
  tiles.down = (most + BM * CM - 1) / (BM * CM);
  tiles.across = (cols + BN * CN - 1) / (BN * CN);
  tiles.rank = cluster > 1 ? blockIdx.x % cluster : 0;
  tiles.first = blockIdx.x / cluster;
  tiles.step = gridDim.x / cluster;
  int who = threadIdx.x / 128;
  if (who == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) produce(b, tiles, &x, &w, k, rows);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_for_previous();
    End e = {out, bias, min_i(*rows, most), cols, stride, row_scale, col_scale};
    consume(b, tiles, e, k, who - 1);
  }
  if (cluster > 1) cluster_sync();
}
#endif
