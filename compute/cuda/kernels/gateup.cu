// gateup: products x·Wᵀ of bf16 on Hopper's tensor cores, summed in float, whose end is fused:
//
//	FORM 0  out = silu(gate) · up, bf16; row 2i of W is row i of the gate's matrix, row 2i+1 of up's
//	FORM 1  out = x·Wᵀ + bias, bf16
//	FORM 2  out += x·Wᵀ + bias, float
//
// A block is a producer and two consumers of 4 warps each. It takes one tile of BM rows by BN rows of W
// after the other, so that the grid is as large as the GPU. The producer's one thread lets the copy
// engine fill STAGES buffers of 64 columns of x and W; full[s] and empty[s] pass them to and fro. Two
// blocks may form a cluster: with CM = 2 they have neighbouring rows and share W's part, with CN = 2
// they have neighbouring columns and share x's; each copies half of what is shared to both.
//
// Consumer w takes rows w·BM/2 … of the tile. The second starts SKEW buffers behind the first, so that
// one has the tensor cores for itself while the other is at the end of its tile.
//
// Shared memory of a buffer: rows of 128 bytes, x's then W's, in groups of 8 rows (1,024 bytes) within
// which the copy engine swaps 16-byte pieces: piece p of row r lies at p ^ (r % 8). wgmma's descriptor of
// that layout: address/16, 1,024/16 as the stride between groups, mode 1 in the top bits. 16 columns
// further on are 32 bytes further on in the address.
//
// Result of a wgmma in registers: thread t of a consumer has rows t/32·16 + t%32/4 (+ 8) and of each 8
// columns j the two columns 8j + 2·(t%4): d[4j], d[4j+1], and of the lower row d[4j+2], d[4j+3]. So in
// FORM 0 a thread has gate and up of the same column, 4j + t%4. Four threads swap their columns of four
// j, so that each stores one piece of 8 bytes (FORM 1: 16).
//
// Limit: the tensor cores; for few rows, reading W once.
// check: BM=128 BN=256 STAGES=4 CM=2 CN=1 SKEW=2 GROUP=16 FORM=0
// check: BM=256 BN=136 STAGES=4 CM=1 CN=2 SKEW=0 GROUP=16 FORM=0
// check: BM=256 BN=192 STAGES=4 CM=1 CN=1 SKEW=1 GROUP=16 FORM=1
// check: BM=128 BN=96 STAGES=6 CM=1 CN=2 SKEW=1 GROUP=16 FORM=2
#include "grebe.cuh"

#if GREBE_ARCH >= 90
#include "gateup.cuh"

#ifdef __clang__ // which does not know it before version 20
#undef __grid_constant__
#define __grid_constant__
#endif

struct __align__(64) TensorMap { u64 words[16]; };

constexpr int depth = 64;          // columns of a buffer
constexpr int blocks = BM / 128;   // of 64 rows, of one consumer
constexpr int cluster = CM * CN;
constexpr u32 xBytes = BM * 128, wBytes = BN * 128, stageBytes = xBytes + wBytes;
static_assert(BM == 128 || BM == 256, "rows of a tile");
static_assert(BN % 8 == 0 && BN <= 256 && (CM == 1 || BN % 16 == 0), "columns of a tile");
static_assert(cluster <= 2, "blocks of a cluster");

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
  int down, across, rank, row, col; // clusters of tiles; first row and column of this block's tile

  DEVICE int count() const { return down * across; }
  // Rows run first, in groups that the cache holds, so that W is read once per group.
  DEVICE void take(int t) {
    int whole = GROUP * across, g = t / whole, r = t - g * whole;
    int high = min_i(GROUP, down - g * GROUP), n = r / high, m = g * GROUP + r - n * high;
    row = (m * CM + (CM > 1 ? rank : 0)) * BM;
    col = (n * CN + (CN > 1 ? rank : 0)) * BN;
  }
};

// ---- the ends of a tile

struct End {
  void* out;
  const float* bias; // or null
  int rows, cols, stride;
};

DEVICE u32 swap(u32 v, int mask) {
  u32 y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(v), "r"(mask));
  return y;
}

// Lane c of four neighbours gets word c of each: w[k] becomes lane k's w[c].
DEVICE void transpose(u32 (&w)[4], int c) {
  bool odd = c & 1, upper = c & 2;
  u32 a = swap(odd ? w[0] : w[1], 1), b = swap(odd ? w[2] : w[3], 1);
  w[0] = odd ? a : w[0], w[1] = odd ? w[1] : a;
  w[2] = odd ? b : w[2], w[3] = odd ? w[3] : b;
  a = swap(upper ? w[0] : w[2], 2), b = swap(upper ? w[1] : w[3], 2);
  w[0] = upper ? a : w[0], w[2] = upper ? w[2] : a;
  w[1] = upper ? b : w[1], w[3] = upper ? w[3] : b;
}

DEVICE u32 low_halves(u32 a, u32 b) { u32 v; asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(v) : "r"(a), "r"(b)); return v; }
DEVICE u32 high_halves(u32 a, u32 b) { u32 v; asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(v) : "r"(a), "r"(b)); return v; }

// The bias of the two columns of W that thread c of four has of group j.
DEVICE F2 bias_of(const End& e, int col) {
  F2 none = {0, 0};
  return e.bias && col < e.cols ? *(const F2*)(e.bias + col) : none;
}

#if FORM == 0
// e.cols counts W's rows; out has half as many columns.
DEVICE u32 gate_up(const End& e, const float* d, int col) {
  F2 b = bias_of(e, col);
  return pack_bf16(silu(d[0] + b.x) * (d[1] + b.y), silu(d[2] + b.x) * (d[3] + b.y));
}

DEVICE void finish(const End& e, const float (&d)[BN / 2], int row, int col, int c) {
  bf16* upper = (bf16*)e.out + (u64)row * e.stride + col / 2;
  bf16* lower = upper + (u64)8 * e.stride;
  bool has = row < e.rows, hasLower = row + 8 < e.rows;
#pragma unroll
  for (int j = 0; j + 4 <= BN / 8; j += 4) {
    u32 w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = gate_up(e, d + 4 * (j + i), col + 8 * (j + i) + 2 * c);
    transpose(w, c);
    int at = 4 * (j + c);
    if (col + 2 * at >= e.cols) continue;
    U2 a = {low_halves(w[0], w[1]), low_halves(w[2], w[3])}, b = {high_halves(w[0], w[1]), high_halves(w[2], w[3])};
    if (has) *(U2*)(upper + at) = a;
    if (hasLower) *(U2*)(lower + at) = b;
  }
#pragma unroll
  for (int j = BN / 32 * 4; j < BN / 8; j++) {
    u32 w = gate_up(e, d + 4 * j, col + 8 * j + 2 * c);
    if (col + 8 * j >= e.cols) continue;
    if (has) upper[4 * j + c] = (bf16)w;
    if (hasLower) lower[4 * j + c] = (bf16)(w >> 16);
  }
}
#elif FORM == 1
DEVICE void finish(const End& e, const float (&d)[BN / 2], int row, int col, int c) {
  bf16* upper = (bf16*)e.out + (u64)row * e.stride + col;
  bf16* lower = upper + (u64)8 * e.stride;
  bool has = row < e.rows, hasLower = row + 8 < e.rows;
#pragma unroll
  for (int j = 0; j < BN / 8; j += 4) {
    u32 w[4] = {}, v[4] = {};
#pragma unroll
    for (int i = 0; i < 4 && j + i < BN / 8; i++) {
      F2 b = bias_of(e, col + 8 * (j + i) + 2 * c);
      const float* s = d + 4 * (j + i);
      w[i] = pack_bf16(s[0] + b.x, s[1] + b.y);
      v[i] = pack_bf16(s[2] + b.x, s[3] + b.y);
    }
    transpose(w, c);
    transpose(v, c);
    int at = 8 * (j + c);
    if (j + c >= BN / 8 || col + at >= e.cols) continue;
    U4 a = {w[0], w[1], w[2], w[3]}, b = {v[0], v[1], v[2], v[3]};
    if (has) *(U4*)(upper + at) = a;
    if (hasLower) *(U4*)(lower + at) = b;
  }
}
#else
DEVICE void add(float* to, float x, float y) {
  F2 v = *(F2*)to;
  v.x += x, v.y += y;
  *(F2*)to = v;
}

DEVICE void finish(const End& e, const float (&d)[BN / 2], int row, int col, int c) {
  float* upper = (float*)e.out + (u64)row * e.stride + col + 2 * c;
  float* lower = upper + (u64)8 * e.stride;
  bool has = row < e.rows, hasLower = row + 8 < e.rows;
#pragma unroll
  for (int j = 0; j < BN / 8; j++) {
    if (col + 8 * j >= e.cols) continue;
    F2 b = bias_of(e, col + 8 * j + 2 * c);
    if (has) add(upper + 8 * j, d[4 * j] + b.x, d[4 * j + 1] + b.y);
    if (hasLower) add(lower + 8 * j, d[4 * j + 2] + b.x, d[4 * j + 3] + b.y);
  }
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

DEVICE void produce(Buffers b, Tiles tiles, const TensorMap* x, const TensorMap* w, int k, int first, int step) {
  for (int t = first; t < tiles.count(); t += step) {
    tiles.take(t);
    for (int c = 0; c < k; c += depth, b.index++) {
      barrier_wait(b.emptied(b.index), b.parity() ^ 1);
      barrier_expect(b.filled(), stageBytes);
      if (CN == 2)
        copy_shared_tile(b.x() + tiles.rank * (xBytes / 2), x, c, tiles.row + tiles.rank * (BM / 2), b.filled());
      else
        copy_tile(b.x(), x, c, tiles.row, b.filled());
      if (CM == 2)
        copy_shared_tile(b.w() + tiles.rank * (wBytes / 2), w, c, tiles.col + tiles.rank * (BN / 2), b.filled());
      else
        copy_tile(b.w(), w, c, tiles.col, b.filled());
    }
  }
}

DEVICE u64 descriptor(u32 address) { return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62; }

// d += x·w for 64 rows of x and 16 columns.
DEVICE void multiply(float (&d)[BN / 2], u64 x, u64 w) { asm volatile(MMA(BN) : ACC(BN)(d) : "l"(x), "l"(w)); }

template <int pending> DEVICE void multiplied() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }

// Every warp gives the buffer back, to both blocks of a cluster: either may copy into either.
DEVICE void release(const Buffers& b, int index) {
  int lane = threadIdx.x & 31;
  if (lane < cluster) barrier_arrive(b.emptied(index), lane);
}

DEVICE void consume(Buffers b, Tiles tiles, const End& e, int k, int who, int first, int step) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
  for (int t = first; t < tiles.count(); t += step) {
    tiles.take(t);
    float d[blocks][BN / 2]; // cleared, since a first step that does not add makes the compiler wait for each wgmma
#pragma unroll
    for (int i = 0; i < blocks * BN / 2; i++) d[i / (BN / 2)][i % (BN / 2)] = 0;
    if (SKEW > 0 && t == first && who == 1) asm volatile("bar.sync 1, 256;" ::: "memory");
    for (int c = 0; c < k; c += depth, b.index++) {
      barrier_wait(b.filled(), b.parity());
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      u64 x = descriptor(b.x() + who * (xBytes / 2)), w = descriptor(b.w());
#pragma unroll
      for (int s = 0; s < depth / 16; s++) {
#pragma unroll
        for (int i = 0; i < blocks; i++) multiply(d[i], x + s * 2 + i * (64 * 128 >> 4), w + s * 2);
      }
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      if (c > 0) {
        multiplied<1>();
        release(b, b.index - 1);
      }
      if (SKEW > 0 && t == first && who == 0 && c == (SKEW - 1) * depth) asm volatile("bar.arrive 1, 256;" ::: "memory");
    }
    multiplied<0>();
    release(b, b.index - 1);
#pragma unroll
    for (int i = 0; i < blocks; i++)
      finish(e, d[i], tiles.row + who * (BM / 2) + i * 64 + warp * 16 + lane / 4, tiles.col, lane & 3);
  }
}

// rows holds the number of rows of x, at most most; w has cols rows of k columns, k a multiple of 64 and
// at least SKEW·64. The grid is a multiple of the cluster. x and w describe boxes of 64 columns by BM/CN
// and BN/CM rows, swizzled by 128 bytes. stride is out's, in values.
KERNEL void __launch_bounds__(384, 1)
    product(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, void* out, const float* bias,
            const int* rows, int most, int cols, int k, int stride) {
  extern __shared__ u8 memory[];
  Buffers b;
  b.stages = (shared_address(memory) + 1023) & ~1023u;
  b.full = b.stages + STAGES * stageBytes;
  b.empty = b.full + STAGES * 8;
  b.index = 0;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(b.full + s * 8, 1);
      barrier_init(b.empty + s * 8, 8 * cluster);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("prefetch.tensormap [%0]; prefetch.tensormap [%1];" ::"l"(&x), "l"(&w) : "memory");
  }
  cluster_sync();
  wait_for_previous();
  allow_next();

  End e = {out, bias, min_i(*rows, most), cols, stride};
  Tiles tiles;
  tiles.down = (e.rows + BM * CM - 1) / (BM * CM);
  tiles.across = (cols + BN * CN - 1) / (BN * CN);
  tiles.rank = cluster > 1 ? blockIdx.x % cluster : 0;
  int first = blockIdx.x / cluster, step = gridDim.x / cluster;
  int who = threadIdx.x / 128;
  if (who == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) produce(b, tiles, &x, &w, k, first, step);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume(b, tiles, e, k, who - 1, first, step);
  }
  if (cluster > 1) cluster_sync();
}
#endif
