// attend_gather: K and V of cached tokens from their chunks, which lie anywhere in the GPU's or in pinned
// memory, to the scratch that attend.cu reads. One warp copies one head's K or V of one piece (up to 64
// tokens of a chunk) in one layer; runs against memory bandwidth, or the bus. The scratch is bf16; what the
// chunks have in e4m3 (KV 3, not 1) is multiplied by its scale on the way.
// check: KV_HEADS=2 DIM=128 KV=1
// check: KV_HEADS=1 DIM=80 KV=1
// check: KV_HEADS=2 DIM=96 KV=3
#include "grebe.cuh"
#include "home.cuh"

typedef U4 Word;
#define ROW_BYTES (DIM * SIZE_OF(KV))
#define WORDS (ROW_BYTES / (int)sizeof(Word)) // of a vector in a chunk
#define WIDER (2 / SIZE_OF(KV))               // words in the scratch for each of them
#define DEPTH 4 // loads in flight per thread

// Stores a word of a chunk in the scratch.
DEVICE void put(Word* to, const Word& v, float scale) {
#if KV == FP8
  u32 in[4] = {v.x, v.y, v.z, v.w}, out[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    u32 pair = in[i / 2] >> (i & 1) * 16;
    out[i] = pack_bf16(from_e4m3(pair & 255) * scale, from_e4m3(pair >> 8 & 255) * scale);
  }
  to[0] = Word{out[0], out[1], out[2], out[3]};
  to[1] = Word{out[4], out[5], out[6], out[7]};
#else
  *to = v;
#endif
}

#define LIST_PIECES 9 // number and offset of the pieces

struct __align__(16) Piece {
  const u8* chunk;
  int room, token; // tokens the chunk has room for; first token of the piece in it
  int tokens, slot;
  const u8* home; // the chunk where it lies, if it is on its way to be gathered from elsewhere
};

KERNEL void __launch_bounds__(256) attend_gather(u8* scratch, int slots, int buffers, const int* list, int layer, int layers, int home) {
  wait_for_previous();
  int lane = threadIdx.x & 31, pieces = list[LIST_PIECES];
  const Piece* piece = (const Piece*)(list + list[LIST_PIECES + 1]);
  int total = layers * pieces * 2 * KV_HEADS, warps = gridDim.x * 8;
  for (int i = blockIdx.x * 8 + (threadIdx.x >> 5); i < total; i += warps) {
    int matrix = i % (2 * KV_HEADS), rest = i / (2 * KV_HEADS), l = layer + rest / pieces;
    int kv = matrix / KV_HEADS, head = matrix % KV_HEADS;
    Piece p = piece[rest % pieces];
    const u8* vectors = head_of<KV>((u8*)(home ? p.home : p.chunk), p.room, l, matrix, KV_HEADS, ROW_BYTES);
    const Word* from = (const Word*)(vectors + (u64)p.token * ROW_BYTES);
    Word* to = (Word*)scratch + ((u64)((l % buffers * KV_HEADS + head) * 2 + kv) * slots + p.slot) * (WORDS * WIDER);
    float scale = KV == FP8 ? *(const float*)(vectors - SCALE_BYTES(KV)) : 1.0f;
    int words = p.tokens * WORDS;
    for (int at = lane; at < words; at += 32 * DEPTH) {
      Word v[DEPTH];
#pragma unroll
      for (int d = 0; d < DEPTH; d++)
        if (at + 32 * d < words) v[d] = from[at + 32 * d];
#pragma unroll
      for (int d = 0; d < DEPTH; d++)
        if (at + 32 * d < words) put(to + (at + 32 * d) * WIDER, v[d], scale);
    }
  }
}
