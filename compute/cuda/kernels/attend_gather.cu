// attend_gather: K and V of cached tokens from their chunks, which lie anywhere in the GPU's or in pinned
// memory, to the scratch that attend.cu reads. One warp copies K and V of all heads of one piece (up to 16
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
  int total = layers * pieces, warps = gridDim.x * 8;
  for (int i = blockIdx.x * 8 + (threadIdx.x >> 5); i < total; i += warps) {
    int l = layer + i / pieces;
    Piece p = piece[i % pieces];
    const Word* from = (const Word*)p.chunk + (u64)(l * 2 * KV_HEADS) * p.room * WORDS + p.token * WORDS;
    Word* to = (Word*)scratch + ((u64)(l % buffers * KV_HEADS * 2) * slots + p.slot) * WORDS;
    u32 words = p.tokens * WORDS; // of one head's K or V
    for (u32 at = lane; at < 2 * KV_HEADS * words; at += 32 * DEPTH) {
      Word v[DEPTH];
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        u32 n = at + 32 * d, matrix = n / words; // [k|v][head]
        if (matrix < 2 * KV_HEADS) v[d] = from[(u64)matrix * p.room * WORDS + n % words];
      }
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        u32 n = at + 32 * d, matrix = n / words;
        if (matrix < 2 * KV_HEADS) to[(u64)(matrix % KV_HEADS * 2 + matrix / KV_HEADS) * slots * WORDS + n % words] = v[d];
      }
    }
  }
}
