// uvqk: finishes the first product of a layer of HSTU. Adds the bias, writes SiLU(u) to u, the queries to q,
// and keys and values to their chunks. Runs against memory bandwidth. A warp takes one head of one row.
//
// With SCRATCH, keys and values go to attention's scratch as well, as in rope.cu; and as there, values that are
// no finite numbers become zeros, and their keys NaN.
//
// IN is the format of the product, U of u, Q of q, KV of the chunks. The product's rows have stride columns: u, v,
// q and k of HEADS heads of DIM values each. Rows of u and q have q_stride columns.
// check: IN=1 U=1 Q=1 KV=1 HEADS=8 DIM=64 SCRATCH=1
// check: IN=0 U=1 Q=0 KV=0 HEADS=3 DIM=6
#include "grebe.cuh"
#include "load.cuh"
#include "home.cuh"

#define PAIRS ((DIM + 63) / 64) // of a lane

template <int F>
DEVICE void load2(const u8* p, int i, float* v) {
  if (F == 0) { F2 a = *(const F2*)(p + 4 * i); v[0] = a.x; v[1] = a.y; return; }
  u32 a = *(const u32*)(p + 2 * i);
  v[0] = low_bf16(a);
  v[1] = high_bf16(a);
}
template <int F>
DEVICE void store2(u8* p, int i, const float* v) {
  if (F == 0) { F2 a = {v[0], v[1]}; *(F2*)(p + 4 * i) = a; return; }
  *(u32*)(p + 2 * i) = pack_bf16(v[0], v[1]);
}

// One of a head's four vectors, with its bias.
struct Vector {
  float v[PAIRS][2];
};
DEVICE Vector load_vector(const u8* in, const float* bias, int part, int head, int lane) {
  Vector x;
  int first = (part * HEADS + head) * DIM;
#pragma unroll
  for (int p = 0; p < PAIRS; p++) {
    int i = (p * 32 + lane) * 2;
    x.v[p][0] = x.v[p][1] = 0;
    if (i >= DIM) continue;
    load2<IN>(in + first * SIZE_OF(IN), i, x.v[p]);
    if (bias) { x.v[p][0] += bias[first + i]; x.v[p][1] += bias[first + i + 1]; }
  }
  return x;
}
template <int F>
DEVICE void store_vector(u8* to, const Vector& x, int lane) {
#pragma unroll
  for (int p = 0; p < PAIRS; p++) {
    int i = (p * 32 + lane) * 2;
    if (i < DIM) store2<F>(to, i, x.v[p]);
  }
}

KERNEL void __launch_bounds__(128) uvqk(u8* u, u8* q, const u8* in, const float* bias, const Home* homes, const int* rows,
                                        int stride, int q_stride, int layer, u8* scratch, const int* list, int slots) {
  int head = blockIdx.y * 4 + (threadIdx.x >> 5), row = blockIdx.x, lane = threadIdx.x & 31;
  wait_for_previous();
  allow_next();
  if (row >= *rows || head >= HEADS) return;
  in += (u64)row * stride * SIZE_OF(IN);
  u64 at = (u64)row * q_stride + head * DIM;
  Vector own = load_vector(in, bias, 0, head, lane), v = load_vector(in, bias, 1, head, lane);
  Vector query = load_vector(in, bias, 2, head, lane), k = load_vector(in, bias, 3, head, lane);
  float bad = 0;
#pragma unroll
  for (int p = 0; p < PAIRS; p++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      own.v[p][i] = silu(own.v[p][i]);
      if (!(abs_f(v.v[p][i]) < 3.38e38f)) bad = 1;
    }
  if (warp_max(bad) > 0)
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
#pragma unroll
      for (int i = 0; i < 2; i++) { v.v[p][i] = 0; k.v[p][i] = bits_f(0x7fc00000u); }
  store_vector<U>(u + at * SIZE_OF(U), own, lane);
  store_vector<Q>(q + at * SIZE_OF(Q), query, lane);
  const Home home = homes[row];
  const int bytes = DIM * SIZE_OF(KV);
  store_vector<KV>(head_of<KV>(home.chunk, home.tokens, layer, head, HEADS, bytes) + (u64)home.token * bytes, k, lane);
  store_vector<KV>(head_of<KV>(home.chunk, home.tokens, layer, HEADS + head, HEADS, bytes) + (u64)home.token * bytes, v, lane);
#if SCRATCH
  u8* also = scratch + ((u64)head * 2 * slots + list[list[7] + row]) * (DIM * 2);
  store_vector<1>(also, k, lane);
  store_vector<1>(also + (u64)slots * (DIM * 2), v, lane);
#endif
}
