// follow: the rows of a search's next round take over from the beams that were chosen: the token of the
// code that each one took and, in every layer, the keys and values of its parent's path, from the slots of
// the round before to its own. Runs against memory bandwidth.
//
// A block takes one row in one layer of attention's scratch, [layer][KV head][k|v][slot][dim]. Every round
// has slots of its own: row r of a round whose rows have n tokens has n of them from first + r·n on. Rows
// beyond a request's beams get a token and a path that exist.
// check: KV_HEADS=8 ROW_BYTES=256
// check: KV_HEADS=1 ROW_BYTES=160
#include "grebe.cuh"

#define WORDS (ROW_BYTES / 16)

struct Beams { // of a request
  const int* head; // how many there are
  const int* parents;
  const int* codes;
};

// width and before are the beams of a request in this round and in the one before, past the tokens that a
// path had there, from and to the first slots of both.
KERNEL void __launch_bounds__(256) follow(int* tokens, const Beams* beams, const int* table, U4* scratch, int slots, int width, int before,
                                          int past, int from, int to) {
  wait_for_previous();
  allow_next();
  int row = blockIdx.x, layer = blockIdx.y, request = row / width, i = row % width;
  Beams b = beams[request];
  bool live = i < b.head[0];
  if (layer == 0 && threadIdx.x == 0) tokens[row] = table[live ? b.codes[i] : 0];
  int parent = live ? b.parents[i] : 0, words = past * WORDS;
  u64 source = (u64)(from + (request * before + parent) * past) * WORDS, target = (u64)(to + row * (past + 1)) * WORDS;
  for (int k = threadIdx.x; k < 2 * KV_HEADS * words; k += blockDim.x) {
    U4* matrix = scratch + (u64)(layer * 2 * KV_HEADS + k / words) * slots * WORDS;
    matrix[target + k % words] = matrix[source + k % words];
  }
}
