// mix: out[row] = [u, a, u · norm(a)], the input of the last product of a layer of HSTU, where a is attention
// and norm a LayerNorm over all heads or, with per_head, over each head with one gain and one shift per head;
// gain and shift may be nil. A block per row; runs against memory bandwidth.
//
// DT is the format of all three. Rows of u and a have stride columns, those of out out_stride, of which the first
// 3·HEADS·DIM are written.
// check: DT=1 HEADS=8 DIM=64
// check: DT=0 HEADS=3 DIM=6
// check: DT=1 HEADS=100 DIM=128
#include "grebe.cuh"
#include "load.cuh"

#define WIDTH (HEADS * DIM)
#define KEPT (WIDTH <= 10240) // a row of attention is kept in shared memory, of which a block has 48 KB without asking

// What a value is made with.
struct Norm {
  u8* out;
  const u8* u;
  const float *gain, *shift;
  float mean, scale;
};

// Writes value i, of attention v; at is the place of its gain and shift.
DEVICE void finish(const Norm& n, int i, float v, int at) {
  float own = load1<DT>(n.u, i), normed = (v - n.mean) * n.scale;
  if (n.gain) normed *= n.gain[at];
  if (n.shift) normed += n.shift[at];
  store1<DT>(n.out, i, own);
  store1<DT>(n.out, WIDTH + i, v);
  store1<DT>(n.out, 2 * WIDTH + i, own * normed);
}

KERNEL void __launch_bounds__(128) mix(u8* out, const u8* u, const u8* a, const float* gain, const float* shift, const int* rows,
                                       int stride, int out_stride, int per_head, float eps) {
  __shared__ float scratch[33];
#if KEPT
  __shared__ float attention[WIDTH];
#define AT(i) attention[i]
#else
#define AT(i) load1<DT>(a, i)
#endif
  int row = blockIdx.x, lane = threadIdx.x & 31;
  wait_for_previous();
  allow_next();
  if (row >= *rows) return;
  a += (u64)row * stride * SIZE_OF(DT);
  Norm n = {out + (u64)row * out_stride * SIZE_OF(DT), u + (u64)row * stride * SIZE_OF(DT), gain, shift, 0, 0};
  float sum = 0;
  for (int i = threadIdx.x; i < WIDTH; i += 128) {
    float v = load1<DT>(a, i);
#if KEPT
    attention[i] = v;
#endif
    sum += v;
  }
  n.mean = block_sum(sum, scratch) / WIDTH;
  __syncthreads();
  if (per_head) {
    for (int h = threadIdx.x >> 5; h < HEADS; h += 4) {
      float part = 0, squares = 0;
      for (int i = lane; i < DIM; i += 32) part += AT(h * DIM + i);
      n.mean = warp_sum(part) / DIM;
      for (int i = lane; i < DIM; i += 32) squares += (AT(h * DIM + i) - n.mean) * (AT(h * DIM + i) - n.mean);
      n.scale = rsqrt_exact(warp_sum(squares) / DIM + eps);
      for (int i = lane; i < DIM; i += 32) finish(n, h * DIM + i, AT(h * DIM + i), h);
    }
    return;
  }
  float square = 0;
  for (int i = threadIdx.x; i < WIDTH; i += 128) square += (AT(i) - n.mean) * (AT(i) - n.mean);
  n.scale = rsqrt_exact(block_sum(square, scratch) / WIDTH + eps);
  for (int i = threadIdx.x; i < WIDTH; i += 128) finish(n, i, AT(i), i);
}
