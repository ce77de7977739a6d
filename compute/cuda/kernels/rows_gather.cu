// rows_gather: copies cached rows of several tables to one output row per id. A row that is not cached yields zeros.
//
// A warp looks 32 ids up at once, a lane each, and then copies their rows together, 16 bytes per lane, with several
// loads in flight. Grid rows are jobs. Runs against memory bandwidth; a look-up reads 4 bytes at random.
//
// IN is the format of cached rows and OUT that of the output: 0 float, 1 bf16.
// check: IN=0 OUT=0
// check: IN=1 OUT=1
// check: IN=1 OUT=0
#include "rows.cuh"
#include "load.cuh"

#define DEPTH 4 // loads in flight per thread

KERNEL void __launch_bounds__(256) rows_gather(const Table* tables, const Job* jobs) {
  const Job j = jobs[blockIdx.y];
  const Table t = tables[j.table];
  const Place words = by_words(t.words);
  int lane = threadIdx.x & 31, step = gridDim.x * 256;
  for (int first = (blockIdx.x * 256 + threadIdx.x) & ~31; first < j.count; first += step) {
    u64 row = first + lane < j.count ? row_of(t, j.ids[first + lane]) : 0;
    int all = min_i(32, j.count - first) * t.words;
    for (int at = 0; at < all; at += 32 * DEPTH) {
      U4 v[DEPTH];
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        int i = min_i(at + 32 * d + lane, all - 1); // no branch between the loads
        u32 r = row_at(words, i);
        u64 from = shuffle_u64(row, r);
        v[d] = load_once(from ? (const U4*)from + (i - r * t.words) : (const U4*)t.pages);
        if (!from) v[d] = {0, 0, 0, 0};
      }
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        int i = at + 32 * d + lane;
        if (i >= all) continue;
        u32 r = row_at(words, i), w = i - r * t.words;
        u8* to = j.out + (u64)(first + r) * j.stride;
        if (IN == OUT) {
          ((U4*)to)[w] = v[d];
        } else {
          float x[8];
          load8<IN>(&v[d], x);
          store8<OUT>(to + w * 32, x);
        }
      }
    }
  }
}
