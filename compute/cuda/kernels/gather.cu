// gather: row i of out is row index[i] of in; words of 16 bytes. For the rows that go on after the
// last layer's attention.
#include "grebe.cuh"

KERNEL void gather(U4* out, const U4* in, const int* index, const int* rows, int words) {
  int row = blockIdx.x;
  wait_for_previous();
  if (row >= *rows) return;
  const U4* from = in + (u64)index[row] * words;
  U4* to = out + (u64)row * words;
  for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
}
