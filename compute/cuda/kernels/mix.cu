// mix: out[row] = [u, a, u · norm(a)], the input of the last product of a layer of HSTU, where a is attention
// and norm a LayerNorm over all heads or, with per_head, over each head with one gain and one shift per head;
// gain and shift may be nil. A block per row; runs against memory bandwidth.
//
// DT is the format of all three. Rows of u and a have stride columns, those of out out_stride, of which the first
// 3·HEADS·DIM are written.
// check: DT=1 HEADS=8 DIM=64
// check: DT=0 HEADS=3 DIM=6
#include "grebe.cuh"
#include "load.cuh"

#define WIDTH (HEADS * DIM)

// The mean and what to multiply differences from it by.
struct Norm { float mean, scale; };

KERNEL void __launch_bounds__(128) mix(u8* out, const u8* u, const u8* a, const float* gain, const float* shift, const int* rows,
                                       int stride, int out_stride, int per_head, float eps) {
  __shared__ float attention[WIDTH], scratch[33];
  __shared__ Norm norms[HEADS];
  int row = blockIdx.x, lane = threadIdx.x & 31;
  wait_for_previous();
  allow_next();
  if (row >= *rows) return;
  u += (u64)row * stride * SIZE_OF(DT);
  a += (u64)row * stride * SIZE_OF(DT);
  out += (u64)row * out_stride * SIZE_OF(DT);
  float sum = 0;
  for (int i = threadIdx.x; i < WIDTH; i += 128) sum += attention[i] = load1<DT>(a, i);
  float mean = block_sum(sum, scratch) / WIDTH, square = 0;
  __syncthreads();
  if (per_head) {
    for (int h = threadIdx.x >> 5; h < HEADS; h += 4) {
      float part = 0, squares = 0;
      for (int i = lane; i < DIM; i += 32) part += attention[h * DIM + i];
      part = warp_sum(part) / DIM;
      for (int i = lane; i < DIM; i += 32) squares += (attention[h * DIM + i] - part) * (attention[h * DIM + i] - part);
      float scale = rsqrt_exact(warp_sum(squares) / DIM + eps);
      if (lane == 0) norms[h] = Norm{part, scale};
    }
  } else {
    for (int i = threadIdx.x; i < WIDTH; i += 128) square += (attention[i] - mean) * (attention[i] - mean);
    float scale = rsqrt_exact(block_sum(square, scratch) / WIDTH + eps);
    for (int h = threadIdx.x; h < HEADS; h += 128) norms[h] = Norm{mean, scale};
  }
  __syncthreads();
  for (int i = threadIdx.x; i < WIDTH; i += 128) {
    int h = i / DIM, g = per_head ? h : i;
    float own = load1<DT>(u, i), v = (attention[i] - norms[h].mean) * norms[h].scale;
    if (gain) v *= gain[g];
    if (shift) v += shift[g];
    store1<DT>(out, i, own);
    store1<DT>(out, WIDTH + i, attention[i]);
    store1<DT>(out, 2 * WIDTH + i, own * v);
  }
}
