// logits: out[i] = norm(x[row]) · head[id] for chosen pairs, in float: a warp per pair sums the squares
// of x and the product in one pass. stride, a multiple of 8, is the columns of x's rows and of the
// table's; beyond width they hold zeros. out may lie in the host's memory.
// check: TABLE=0
// check: TABLE=1
// check: TABLE=2
#include "grebe.cuh"
#include "load.cuh"

struct Pair { int row, id; };

KERNEL void __launch_bounds__(128) logits(float* out, const float* x, const float* gain, const u8* head, const Pair* pairs,
                                          int count, int stride, int width, float eps) {
  const int size = TABLE == 0 ? 4 : 2;
  int i = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  wait_for_previous();
  if (i >= count) return;
  Pair p = pairs[i];
  const float* from = x + (u64)p.row * stride;
  const u8* with = head + (u64)p.id * stride * size;
  float squares = 0, product = 0;
  for (int c = lane * 8; c < stride; c += 256) {
    float a[8], b[8], g[8];
    load8<0>(from + c, a);
    load8<TABLE>(with + (u64)c * size, b);
    if (gain) load8<0>(gain + c, g);
#pragma unroll
    for (int k = 0; k < 8; k++) {
      squares += a[k] * a[k];
      product += (gain ? a[k] * g[k] : a[k]) * b[k];
    }
  }
  squares = warp_sum(squares);
  product = warp_sum(product);
  if (lane == 0) out[i] = gain ? product * rsqrt_exact(squares / (float)width + eps) : product;
}
