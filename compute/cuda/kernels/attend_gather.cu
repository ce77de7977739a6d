// attend_gather: K and V of cached tokens from their chunks, which lie anywhere in the GPU's or in pinned
// memory, to the scratch that attend.cu reads. One warp copies one head's K or V of one piece (up to 64
// tokens of a chunk) in one layer; runs against memory bandwidth, or the bus.
// check: KV_HEADS=2 ROW_BYTES=256
// check: KV_HEADS=1 ROW_BYTES=160
#include "grebe.cuh"

typedef U4 Word;
#define WORDS (ROW_BYTES / (int)sizeof(Word))
#define DEPTH 4 // loads in flight per thread

#define LIST_PIECES 9 // number and offset of the pieces

struct __align__(16) Piece {
  const u8* chunk;
  int room, token; // tokens the chunk has room for; first token of the piece in it
  int tokens, slot, zero[2];
};

KERNEL void __launch_bounds__(256) attend_gather(u8* scratch, int slots, int buffers, const int* list, int layer, int layers) {
  wait_for_previous();
  int lane = threadIdx.x & 31, pieces = list[LIST_PIECES];
  const Piece* piece = (const Piece*)(list + list[LIST_PIECES + 1]);
  int total = layers * pieces * 2 * KV_HEADS, warps = gridDim.x * 8;
  for (int i = blockIdx.x * 8 + (threadIdx.x >> 5); i < total; i += warps) {
    int matrix = i % (2 * KV_HEADS), rest = i / (2 * KV_HEADS), l = layer + rest / pieces;
    int kv = matrix / KV_HEADS, head = matrix % KV_HEADS;
    Piece p = piece[rest % pieces];
    const Word* from = (const Word*)p.chunk + ((u64)(l * 2 * KV_HEADS + matrix) * p.room + p.token) * WORDS;
    Word* to = (Word*)scratch + ((u64)((l % buffers * KV_HEADS + head) * 2 + kv) * slots + p.slot) * WORDS;
    int words = p.tokens * WORDS;
    for (int at = lane; at < words; at += 32 * DEPTH) {
      Word v[DEPTH];
#pragma unroll
      for (int d = 0; d < DEPTH; d++)
        if (at + 32 * d < words) v[d] = from[at + 32 * d];
#pragma unroll
      for (int d = 0; d < DEPTH; d++)
        if (at + 32 * d < words) to[at + 32 * d] = v[d];
    }
  }
}
