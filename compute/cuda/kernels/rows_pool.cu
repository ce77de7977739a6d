// rows_pool: sums the cached rows of each bag, plain, weighted, or divided by the bag's length, for several tables in
// one launch. A row that is not cached adds nothing.
//
// A warp takes up to BAGS neighbouring bags, whose ids lie one behind the other. It looks TILE ids up at once, several
// per lane, and keeps in shared memory where their rows are: the steps of a look-up, each of which waits for the one
// before, are waited for once per TILE ids. Then it sums bag after bag, with up to DEPTH loads per lane in flight.
//
// A row takes the least power of two of lanes that has a lane for each 16 bytes, so that narrow rows are read several
// at once; wider rows than 512 bytes take several rounds. Rows of a bag are added in an order that depends on the bag
// and the width only. Grid rows are jobs. Runs against memory bandwidth: a row, and 32 bytes or more of entries.
//
// IN is the format of cached rows and OUT that of the sums: 0 float, 1 bf16. Sums are made in float.
// check: IN=0 OUT=0
// check: IN=1 OUT=1
// check: IN=1 OUT=0
#include "rows.cuh"
#include "load.cuh"

#define WARPS 8
#define BAGS 4                   // of a warp at a time
#define TILE 128                 // ids that a warp looks up at a time
#define DEPTH 8                  // loads in flight per thread
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

// 16 bytes that are read once, zeros from the address 0. It is no branch.
DEVICE U4 load_if(u64 from) {
  U4 v;
  asm volatile("{.reg .pred p; setp.ne.u64 p, %4, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
               "@p ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];}"
               : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w) : "l"(from));
  return v;
}

// Tile is what a warp has looked up: ids from begin to end of a job's list.
struct Tile {
  u64* rows;      // where they are cached, or 0
  float* weights; // 0 where they are not cached
  int begin, end;

  DEVICE void look_up(const Table& t, const Job& j) {
    int lane = threadIdx.x & 31;
    u32 ids[TILE / 32];
    u64 found[TILE / 32];
#pragma unroll
    for (int k = 0; k < TILE / 32; k++) {
      int i = begin + 32 * k + lane;
      ids[k] = i < end ? j.ids[i] : CLAIMED; // which is no row
    }
#pragma unroll
    for (int k = 0; k < TILE / 32; k++) found[k] = row_of(t, ids[k]);
    __syncwarp(); // what was looked up before has been read
#pragma unroll
    for (int k = 0; k < TILE / 32; k++) {
      int i = begin + 32 * k + lane;
      rows[32 * k + lane] = found[k];
      if (j.weights) weights[32 * k + lane] = found[k] && i < end ? j.weights[i] : 0;
    }
    __syncwarp();
  }
};

// Adds one word of those rows of a bag that are in the tile, with all lanes of a group of the warp on the same row.
// Row i of a bag belongs to group i % groups.
DEVICE void add_rows(const Tile& tile, bool weighted, int bag, int bag_end, u64 word, bool mine, int group, int groups,
                     float* sum) {
  int from = max_i(bag, tile.begin) - bag, to = min_i(bag_end, tile.end) - bag;
  for (int at = from & -groups; at < to; at += groups * DEPTH) {
    U4 v[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      int i = at + d * groups + group;
      u64 row = mine && i >= from && i < to ? tile.rows[bag + i - tile.begin] : 0;
      v[d] = load_if(row ? row + word : 0);
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      if (at + d * groups >= to) break; // for all lanes
      int i = at + d * groups + group;
      float x[VALUES], by = 1;
      if (weighted) by = i >= from && i < to ? tile.weights[bag + i - tile.begin] : 0;
      open_word(v[d], x);
#pragma unroll
      for (int k = 0; k < VALUES; k++) sum[k] += by * x[k];
    }
  }
}

KERNEL void __launch_bounds__(32 * WARPS, 4) rows_pool(const Table* tables, const Job* jobs) {
  __shared__ u64 rows[WARPS][TILE];
  __shared__ float weights[WARPS][TILE];
  const Job j = jobs[blockIdx.y];
  const Table t = tables[j.table];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, lanes = 1, warps = gridDim.x * WARPS;
  while (lanes < 32 && lanes < t.words) lanes *= 2;
  int groups = 32 / lanes, group = lane / lanes;
  int most = max_i(1, min_i(BAGS, (j.count + warps - 1) / warps)); // bags at a time: few if there are warps for all
  for (int first = (blockIdx.x * WARPS + warp) * most; first < j.count; first += warps * most) {
    int count = min_i(most, j.count - first), starts = j.starts[first + min_i(lane, count)];
    int end = shuffle_int(starts, count);
    for (int round = 0; round < t.words; round += 32) {
      int word = round + lane % lanes, bag = 0, begin = shuffle_int(starts, 0), bag_end = shuffle_int(starts, 1);
      float sum[VALUES];
#pragma unroll
      for (int k = 0; k < VALUES; k++) sum[k] = 0;
      Tile tile = {rows[warp], weights[warp], begin, min_i(begin + TILE, end)};
      while (bag < count) {
        tile.look_up(t, j);
        while (bag < count) {
          add_rows(tile, j.weights != 0, begin, bag_end, (u64)word * 16, word < t.words, group, groups, sum);
          if (bag_end > tile.end) break; // the next tile has the rest
          for (int m = lanes; m < 32; m *= 2) {
#pragma unroll
            for (int k = 0; k < VALUES; k++) sum[k] += shuffle_xor(sum[k], m);
          }
          float scale = j.mean && bag_end > begin ? 1.0f / (bag_end - begin) : 1.0f;
#pragma unroll
          for (int k = 0; k < VALUES; k++) sum[k] *= scale;
          if (lane < lanes && word < t.words) store_word(j.out + (u64)(first + bag) * j.stride, word, sum);
#pragma unroll
          for (int k = 0; k < VALUES; k++) sum[k] = 0;
          bag++;
          begin = bag_end;
          bag_end = shuffle_int(starts, bag + 1);
        }
        tile.begin = tile.end;
        tile.end = min_i(tile.begin + TILE, end);
      }
    }
  }
}
