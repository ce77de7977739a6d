// sum: x[row] = scale · table[at[row]] as float, or adds it. A row whose at is negative gets nothing. A block
// per row, 8 columns per thread; runs against memory bandwidth. stride is the columns of a row of x and of the
// table, a multiple of 8; both hold zeros beyond the model's width.
// check: TABLE=0
// check: TABLE=1
// check: TABLE=2
#include "grebe.cuh"
#include "load.cuh"

#if TABLE == 0
typedef float T;
#else
typedef u16 T;
#endif

KERNEL void sum(float* x, const T* table, const int* at, const int* rows, int stride, float scale, int add) {
  int row = blockIdx.x;
  wait_for_previous();
  allow_next();
  if (row >= *rows) return;
  int from = at[row];
  if (from < 0 && add) return;
  float* to = x + (u64)row * stride;
  for (int c = threadIdx.x * 8; c < stride; c += blockDim.x * 8) {
    float v[8], old[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = old[k] = 0;
    if (from >= 0) load8<TABLE>(table + (u64)from * stride + c, v);
    if (add) load8<0>(to + c, old);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = old[k] + scale * v[k];
    store8<0>(to + c, v);
  }
}
