// Where the keys and values of tokens lie: chunks of [layer][k|v][head][token][dim].
#pragma once
#include "grebe.cuh"

// Home is one token's place in a chunk.
struct Home {
  u8* chunk;
  int tokens; // room in the chunk; negative: it holds one layer only, and −tokens is the room
  int token;
};

// Returns the vector of layer and head, of bytes bytes; heads count the keys' and then the values'.
DEVICE u8* home_of(const Home* h, int layer, int head, int kv_heads, int bytes) {
  int room = h->tokens;
  if (room < 0) { room = -room; layer = 0; }
  return h->chunk + (((u64)layer * 2 * kv_heads + head) * room + h->token) * bytes;
}

// Span is a run of keys that lie together: the first count tokens of a chunk.
struct Span {
  u8* chunk;
  int tokens; // as in Home
  int count;
};
