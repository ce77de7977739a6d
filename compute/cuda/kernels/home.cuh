// Where the keys and values of tokens lie: chunks of [layer][k|v][head][token][dim], where in e4m3 a
// head's tokens follow its scale.
#pragma once
#include "grebe.cuh"
#include "fp8.cuh"

// Home is one token's place in a chunk.
struct Home {
  u8* chunk;
  int tokens; // room in the chunk; negative: it holds one layer only, and −tokens is the room
  int token;
};

// Returns the vectors of layer and head, of bytes bytes each, in format F, from its first token on; heads
// count the keys' and then the values'. In e4m3 the scale is SCALE_BYTES before.
template <int F>
DEVICE u8* head_of(u8* chunk, int tokens, int layer, int head, int kv_heads, int bytes) {
  if (tokens < 0) { tokens = -tokens; layer = 0; }
  return chunk + ((u64)layer * 2 * kv_heads + head) * head_bytes<F>(tokens, bytes) + SCALE_BYTES(F);
}

// Span is a run of keys that lie together: the first count tokens of a chunk.
struct Span {
  u8* chunk;
  int tokens; // as in Home
  int count;
  int start; // position of the first
  int row;   // of the batch, of the first; those of the first cached tokens are not its
  int cached;
  int zero;
};
