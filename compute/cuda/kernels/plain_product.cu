// plain_product: out = x·wᵀ, or added to out, one thread per value. It stands in for the matrix library's products
// where a checking tool cannot follow those. x has rows of k values, w has columns of them, without gaps.
//
// IN and OUT are formats, 0 or 1, and IN may be 3; ADD says whether out is added to.
// check: IN=0 OUT=0 ADD=1
// check: IN=1 OUT=1 ADD=0
// check: IN=3 OUT=1 ADD=0
#include "grebe.cuh"
#include "load.cuh"

KERNEL void plain_product(u8* out, const u8* x, const u8* w, int columns, int k) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  u64 row = blockIdx.y, to = row * columns + column;
  float sum = ADD ? load1<OUT>(out, to) : 0.0f;
  for (int i = 0; i < k; i++) sum += load1<IN>(x, row * k + i) * load1<IN>(w, (u64)column * k + i);
  store1<OUT>(out, to, sum);
}
