// rows_pool: sums the cached rows of each bag, plain, weighted, or divided by the bag's length, for several tables in
// one launch. A row that is not cached adds nothing.
//
// A warp takes a bag. It looks 32 ids up at once, a lane each. A row takes the least power of two of lanes that has a
// lane for each 16 bytes, so that narrow rows are read several at once; wider rows than 512 bytes take several rounds.
// Rows are added in an order that depends on the bag and the width only. Grid rows are jobs. Runs against memory
// bandwidth.
//
// IN is the format of cached rows and OUT that of the sums: 0 float, 1 bf16. Sums are made in float.
// check: IN=0 OUT=0
// check: IN=1 OUT=1
// check: IN=1 OUT=0
#include "rows.cuh"
#include "load.cuh"

#define DEPTH 4                 // loads in flight per thread
#define VALUES (IN == 0 ? 4 : 8) // of 16 bytes

DEVICE void open_word(const U4& w, float* v) {
  u32 x[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
#if IN == 0
    v[i] = bits_f(x[i]);
#else
    v[2 * i] = low_bf16(x[i]);
    v[2 * i + 1] = high_bf16(x[i]);
#endif
  }
}

// Writes the sums of one word of a row.
DEVICE void store_word(u8* to, int word, const float* v) {
#if IN == 0
  F4 a = {v[0], v[1], v[2], v[3]};
  ((F4*)to)[word] = a;
#else
  store8<OUT>(to + word * (OUT == 0 ? 32 : 16), v);
#endif
}

// Adds one word of each row of a bag, with all lanes of a group of the warp on the same row.
DEVICE void add_bag(const Table& t, const Job& j, int begin, int n, int word, int group, int groups, float* sum) {
  int lane = threadIdx.x & 31;
  for (int first = 0; first < n; first += 32) {
    u64 row = 0;
    float weight = 1;
    if (first + lane < n) {
      row = row_of(t, j.ids[begin + first + lane]);
      if (j.weights) weight = j.weights[begin + first + lane];
    }
    int here = min_i(32, n - first);
    for (int at = 0; at < here; at += groups * DEPTH) {
      U4 v[DEPTH];
      float by[DEPTH];
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        int i = at + d * groups + group;
        u64 from = shuffle_u64(row, i & 31);
        by[d] = shuffle_from(weight, i & 31);
        bool live = from && i < here && word < t.words;
        v[d] = load_once(live ? (const U4*)from + word : (const U4*)t.pages);
        if (!live) {
          v[d] = {0, 0, 0, 0};
          by[d] = 0;
        }
      }
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        float x[VALUES];
        open_word(v[d], x);
#pragma unroll
        for (int k = 0; k < VALUES; k++) sum[k] += by[d] * x[k];
      }
    }
  }
}

KERNEL void __launch_bounds__(256) rows_pool(const Table* tables, const Job* jobs) {
  const Job j = jobs[blockIdx.y];
  const Table t = tables[j.table];
  int lane = threadIdx.x & 31, lanes = 1;
  while (lanes < 32 && lanes < t.words) lanes *= 2;
  for (int bag = blockIdx.x * 8 + (threadIdx.x >> 5); bag < j.count; bag += gridDim.x * 8) {
    int begin = j.starts[bag], n = j.starts[bag + 1] - begin;
    float scale = j.mean && n > 0 ? 1.0f / n : 1.0f;
    for (int first = 0; first < t.words; first += 32) {
      int word = first + lane % lanes;
      float sum[VALUES];
#pragma unroll
      for (int k = 0; k < VALUES; k++) sum[k] = 0;
      add_bag(t, j, begin, n, word, lane / lanes, 32 / lanes, sum);
      for (int m = lanes; m < 32; m *= 2) {
#pragma unroll
        for (int k = 0; k < VALUES; k++) sum[k] += shuffle_xor(sum[k], m);
      }
#pragma unroll
      for (int k = 0; k < VALUES; k++) sum[k] *= scale;
      if (lane < lanes && word < t.words) store_word(j.out + (u64)bag * j.stride, word, sum);
    }
  }
}
