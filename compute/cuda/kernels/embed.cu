// embed: x[row] = table[token of row], as float. A block per row, 8 columns per thread; runs against
// memory bandwidth. stride is the columns of a row of x and of the table, a multiple of 8; both hold
// zeros beyond the model's width.
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

KERNEL void embed(float* x, const T* table, const int* tokens, const int* rows, int stride) {
  int row = blockIdx.x;
  wait_for_previous();
  allow_next();
  if (row >= *rows) return;
  const T* from = table + (u64)tokens[row] * stride;
  float* to = x + (u64)row * stride;
  for (int c = threadIdx.x * 8; c < stride; c += blockDim.x * 8) {
    float v[8];
    load8<TABLE>(from + c, v);
    F4 a = {v[0], v[1], v[2], v[3]}, b = {v[4], v[5], v[6], v[7]};
    *(F4*)(to + c) = a;
    *(F4*)(to + c + 4) = b;
  }
}
